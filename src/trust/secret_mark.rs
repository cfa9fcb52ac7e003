//! Marks of secrets: a keyed digest that changes with the secret and reveals nothing. Generations
//! contain marks; the key stays in `state_dir`.

use super::{TrustError, files};
use meshd_types::{Digest, Secret, hex, unhex};
use std::path::Path;

/// The key's file in `state_dir`: 64 hexadecimal characters, 0600.
pub const KEY_FILE: &str = "secrets.key";
/// Block size of SHA-256, in bytes (RFC 2104).
const BLOCK: usize = 64;

/// Key of a site's marks.
#[derive(Debug, Clone)]
pub struct MarkKey(Secret<[u8; 32]>);

impl MarkKey {
    /// Reads the key, or creates it from these random bytes at the first start.
    ///
    /// # Errors
    /// The file is unreadable, invalid, or readable by others. A damaged key is not replaced,
    /// because a new one would mark all nodes with secrets for a reboot.
    pub fn load_or_create(state_dir: &Path, random: [u8; 32]) -> Result<Self, TrustError> {
        let path = state_dir.join(KEY_FILE);
        let Some(text) = files::read_private(&path)? else {
            files::make_folder(state_dir)?;
            files::write(&path, &format!("{}\n", hex(&random)), 0o600)?;
            return Ok(MarkKey(Secret::new(random)));
        };
        let key = unhex(text.trim_end()).ok_or_else(|| TrustError::Key { path })?;
        Ok(MarkKey(Secret::new(key)))
    }

    /// Returns the mark of a named value: HMAC-SHA-256.
    pub fn mark(&self, name: &str, value: &Secret<String>) -> Digest {
        // Both are exposed to the hash only.
        let message = [name.as_bytes(), b"\n", value.expose().as_bytes()].concat();
        hmac(self.0.expose(), &message)
    }
}

fn hmac(key: &[u8], message: &[u8]) -> Digest {
    let pad = |with: u8| {
        let mut block = [with; BLOCK];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = Digest::of(&[&pad(0x36), message].concat());
    Digest::of(&[pad(0x5c).as_slice(), &inner.0].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    #[test]
    fn secret_mark_is_hmac_of_rfc_4231() {
        let digest = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hmac(b"Jefe", b"what do ya want for nothing?").to_string(), digest);
    }

    #[test]
    fn mark_key_is_created_once_with_private_mode() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = dir.path().join("state");
        let first = MarkKey::load_or_create(&state, [1; 32]).expect("made");
        let second = MarkKey::load_or_create(&state, [2; 32]).expect("read");
        let secret = Secret::new("s".to_owned());
        assert_eq!(first.mark("a", &secret), second.mark("a", &secret));
        assert_ne!(first.mark("a", &secret), first.mark("b", &secret));
        assert_ne!(first.mark("a", &secret), MarkKey(Secret::new([2; 32])).mark("a", &secret));
        assert!(!format!("{first:?}").contains('1'), "{first:?}");
        let file = state.join(KEY_FILE);
        assert_eq!(fs::metadata(&file).expect("is there").permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("changed");
        assert!(matches!(
            MarkKey::load_or_create(&state, [3; 32]),
            Err(TrustError::Exposed { .. })
        ));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("changed");
        fs::write(&file, "leaked text").expect("written");
        let error = MarkKey::load_or_create(&state, [3; 32]).expect_err("damaged");
        assert!(matches!(error, TrustError::Key { .. }), "{error}");
        assert!(!error.to_string().contains("leaked text"), "{error}");
    }
}
