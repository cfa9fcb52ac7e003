//! Nobody logs in as root by password, whatever the image brought.

use super::{manifest::read_below, unpack::open_root};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Write as _},
    os::fd::OwnedFd,
    path::Path,
};

const PASSWD: &str = "etc/passwd";
const SHADOW: &str = "etc/shadow";
/// Maximum size of a file with accounts, in bytes.
const MAX_ACCOUNTS: u64 = 16 << 20;

/// The account cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    #[error("lock the root account: /{PASSWD}: {0}")]
    Passwd(io::Error),
    #[error("lock the root account: /{SHADOW}: {0}")]
    Shadow(io::Error),
    #[error("lock the root account: /{SHADOW} has no root")]
    NoRoot,
}

/// Removes the passwords of root and of all other accounts with its user ID. `*` in `/etc/shadow`
/// still permits SSH keys; `!` would not.
pub fn lock_root(root: &Path) -> Result<(), AccountError> {
    let root = open_root(root).map_err(AccountError::Passwd)?;
    let passwd = read(&root, PASSWD).map_err(AccountError::Passwd)?;
    let mut names = BTreeSet::from(["root"]);
    let locked = without_passwords(&passwd, &mut names);
    let shadow = read(&root, SHADOW).map_err(AccountError::Shadow)?;
    let locked_shadow = locked_shadow(&shadow, &names).ok_or(AccountError::NoRoot)?;
    if locked != passwd {
        overwrite(&root, PASSWD, &locked).map_err(AccountError::Passwd)?;
    }
    if locked_shadow != shadow {
        overwrite(&root, SHADOW, &locked_shadow).map_err(AccountError::Shadow)?;
    }
    Ok(())
}

fn read(root: &OwnedFd, path: &str) -> io::Result<String> {
    String::from_utf8(read_below(root, path, MAX_ACCOUNTS)?).map_err(io::Error::other)
}

/// Writes in place: mode and owner stay.
fn overwrite(root: &OwnedFd, path: &str, text: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?;
    File::from(file).write_all(text.as_bytes())
}

/// Returns the content with `x` as the password of each account with the user ID 0: with any other
/// text, login does not read `/etc/shadow`. Adds their names.
fn without_passwords<'p>(passwd: &'p str, names: &mut BTreeSet<&'p str>) -> String {
    let line = |line: &'p str| match line.splitn(4, ':').collect::<Vec<_>>()[..] {
        [name, _, id, rest] if is_zero(id) => {
            names.insert(name);
            format!("{name}:x:{id}:{rest}\n")
        }
        _ => format!("{line}\n"),
    };
    passwd.lines().map(line).collect()
}

/// Returns true for a user ID of root as C libraries read it: with signs, spaces and zeros.
fn is_zero(id: &str) -> bool {
    let digits = id.trim().trim_start_matches(['+', '-']);
    !digits.is_empty() && digits.bytes().all(|digit| digit == b'0')
}

/// Returns the content with these accounts locked; `None` if it has no root.
fn locked_shadow(shadow: &str, names: &BTreeSet<&str>) -> Option<String> {
    let mut has_root = false;
    let lines = shadow.lines().map(|line| match line.splitn(3, ':').collect::<Vec<_>>()[..] {
        [name, _, rest] if names.contains(name) => {
            has_root |= name == "root";
            format!("{name}:*:{rest}\n")
        }
        _ => format!("{line}\n"),
    });
    let text: String = lines.collect();
    has_root.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    const USERS: &str = "daemon:x:1:1::/:/bin/sh\n";

    /// Returns the accounts after the lock.
    fn lock(passwd: &str, shadow: &str) -> Result<[String; 2], AccountError> {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join("etc")).expect("made");
        fs::write(root.path().join(PASSWD), format!("{passwd}{USERS}")).expect("written");
        // As a process in the root sees it.
        fs::write(root.path().join("etc/real"), shadow).expect("written");
        symlink("/etc/real", root.path().join(SHADOW)).expect("linked");
        lock_root(root.path())?;
        let text = |path: &str| fs::read_to_string(root.path().join(path)).expect("is there");
        assert!(text(PASSWD).ends_with(USERS), "others stay");
        Ok([text(PASSWD).replace(USERS, ""), text("etc/real")])
    }

    #[test]
    fn password_of_root_is_removed() {
        let root = "root:x:0:0:root:/root:/bin/sh\n";
        let rest = "daemon:*:19000:0:99999:7:::\n";
        for password in ["", "x", "$6$abc"] {
            let shadow = format!("root:{password}:19000:0:99999:7:::\n{rest}");
            let expected = format!("root:*:19000:0:99999:7:::\n{rest}");
            assert_eq!(lock(root, &shadow).expect("locked"), [root.to_owned(), expected]);
        }
        assert!(matches!(lock(root, rest), Err(AccountError::NoRoot)));
        assert!(matches!(lock(root, ""), Err(AccountError::NoRoot)));
    }

    #[test]
    fn password_in_passwd_and_other_accounts_of_root_are_locked() {
        let passwd = "root::0:0:root:/root:/bin/sh\ntoor:$6$abc: +00:0::/:/bin/sh\n";
        let shadow = "root:*:1::::::\ntoor:$6$abc:1::::::\ndaemon:$6$abc:1::::::\n";
        let locked = lock(passwd, shadow).expect("locked");
        assert_eq!(locked[0], "root:x:0:0:root:/root:/bin/sh\ntoor:x: +00:0::/:/bin/sh\n");
        assert_eq!(locked[1], "root:*:1::::::\ntoor:*:1::::::\ndaemon:$6$abc:1::::::\n");
    }
}
