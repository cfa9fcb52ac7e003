//! Nobody logs in as root by password, whatever the image brought.

use std::{fs, io, path::Path};

const SHADOW: &str = "etc/shadow";

/// The account cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    #[error("lock the root account: /{SHADOW}: {0}")]
    Shadow(io::Error),
    #[error("lock the root account: /{SHADOW} has no root")]
    NoRoot,
}

/// Replaces the password of root by `*`, which still permits SSH keys; `!` would not.
pub fn lock_root(root: &Path) -> Result<(), AccountError> {
    let path = root.join(SHADOW);
    let before = fs::read_to_string(&path).map_err(AccountError::Shadow)?;
    let after = without_root_password(&before).ok_or(AccountError::NoRoot)?;
    if before != after {
        // In place: mode and owner stay.
        fs::write(&path, after).map_err(AccountError::Shadow)?;
    }
    Ok(())
}

/// Returns the content with a locked root; `None` if it has no root.
fn without_root_password(shadow: &str) -> Option<String> {
    let mut has_root = false;
    let lines = shadow.lines().map(|line| match line.splitn(3, ':').collect::<Vec<_>>()[..] {
        ["root", _, rest] => {
            has_root = true;
            format!("root:*:{rest}\n")
        }
        _ => format!("{line}\n"),
    });
    let text: String = lines.collect();
    has_root.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_of_root_is_removed() {
        let shadow = "root:$6$abc:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n";
        let expected = "root:*:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n";
        assert_eq!(without_root_password(shadow).as_deref(), Some(expected));
        assert_eq!(
            without_root_password("root::1::::::").as_deref(),
            Some("root:*:1::::::\n"),
            "no password"
        );
        assert_eq!(without_root_password("daemon:*:1::::::\n"), None);
        assert_eq!(without_root_password(""), None);
    }
}
