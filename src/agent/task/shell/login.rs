//! The login shell of root, from `/etc/passwd`.

/// Used if root has no usable shell.
const FALLBACK: &str = "/bin/sh";
/// Programs that end at once.
const NO_SHELLS: [&str; 2] = ["nologin", "false"];

/// Shell and home of root.
#[derive(Debug, PartialEq, Eq)]
pub struct Login {
    pub shell: String,
    pub home: String,
}

impl Login {
    /// Finds root in the text of `/etc/passwd`. `exists` tells whether a program exists.
    pub fn of_root(passwd: &str, exists: impl Fn(&str) -> bool) -> Self {
        let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let root = fields.into_iter().find(|fields| fields.len() == 7 && fields[2] == "0");
        let (home, shell) = root.map_or(("", ""), |fields| (fields[5], fields[6]));
        let name = shell.rsplit('/').next().unwrap_or_default();
        let is_usable = shell.starts_with('/') && !NO_SHELLS.contains(&name) && exists(shell);
        Login {
            shell: if is_usable { shell } else { FALLBACK }.to_owned(),
            home: if home.starts_with('/') && exists(home) { home } else { "/" }.to_owned(),
        }
    }

    /// Returns the name under which the shell starts: `-` makes it a login shell.
    pub fn argument_zero(&self) -> String {
        format!("-{}", self.shell.rsplit('/').next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_of_root_without_usable_shell_or_home_falls_back() {
        let cases = [
            ("daemon:x:1:1::/:/bin/x\nroot:x:0:0:root:/root:/bin/ash\n", "/bin/ash", "/root"),
            ("root:x:0:0:root:/root:/sbin/nologin\n", "/bin/sh", "/root"),
            ("root:x:0:0:root:/gone:bin/ash\n", "/bin/sh", "/"),
            ("root:x:0:0\n", "/bin/sh", "/"),
            ("", "/bin/sh", "/"),
        ];
        for (passwd, shell, home) in cases {
            let login = Login::of_root(passwd, |path| path != "/gone");
            assert_eq!((login.shell.as_str(), login.home.as_str()), (shell, home), "{passwd}");
        }
        assert_eq!(Login::of_root(cases[0].0, |_| true).argument_zero(), "-ash");
    }
}
