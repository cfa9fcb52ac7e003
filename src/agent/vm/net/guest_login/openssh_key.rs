//! A new Ed25519 key in the format of OpenSSH (PROTOCOL.key), without a passphrase.

use meshd_types::Secret;
use rcgen::{KeyPair, PKCS_ED25519};

/// Type of the key.
const KIND: &str = "ssh-ed25519";
/// Comment of the key, by which an administrator of the guest knows it.
const COMMENT: &str = "meshd-relay";
/// Precedes the seed in PKCS #8 (RFC 8410): an octet string in an octet string.
const SEED_PREFIX: [u8; 4] = [0x04, 0x22, 0x04, 0x20];
/// Bytes of a seed, and of a public key.
const KEY_LENGTH: usize = 32;
/// Block size of the cipher `none`.
const BLOCK: usize = 8;
/// Characters of a line of the file.
const LINE: usize = 70;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A key with both halves as OpenSSH reads them.
pub(super) struct OpensshKey {
    pub(super) private: Secret<String>,
    /// One line of `authorized_keys`, without the line end.
    pub(super) public: String,
}

impl OpensshKey {
    /// Generates a key.
    pub(super) fn generate() -> Result<Self, String> {
        let pair = KeyPair::generate_for(&PKCS_ED25519).map_err(|error| error.to_string())?;
        let der = Secret::new(pair.serialize_der());
        let at = der.expose().windows(SEED_PREFIX.len()).position(|part| part == SEED_PREFIX);
        let seed = at.and_then(|at| der.expose()[at + SEED_PREFIX.len()..].get(..KEY_LENGTH));
        let seed = seed.ok_or("the generated key has no seed")?;
        Ok(Self::encode(seed, pair.public_key_raw()))
    }

    fn encode(seed: &[u8], public: &[u8]) -> Self {
        let blob = [string(KIND.as_bytes()), string(public)].concat();
        // The two equal numbers show whether a cipher was undone.
        let mut section = [[0; 8].to_vec(), blob.clone()].concat();
        section.extend(string(&[seed, public].concat()));
        section.extend(string(COMMENT.as_bytes()));
        let padding = (1u8..).take(section.len().next_multiple_of(BLOCK) - section.len());
        section.extend(padding);
        let mut file = b"openssh-key-v1\0".to_vec();
        for part in [&b"none"[..], b"none", b""] {
            file.extend(string(part));
        }
        file.extend(1u32.to_be_bytes());
        file.extend(string(&blob));
        file.extend(string(&section));
        let mut private = "-----BEGIN OPENSSH PRIVATE KEY-----\n".to_owned();
        for line in base64(&file).as_bytes().chunks(LINE) {
            private.extend(line.iter().map(|byte| char::from(*byte)));
            private.push('\n');
        }
        private.push_str("-----END OPENSSH PRIVATE KEY-----\n");
        let public = format!("{KIND} {} {COMMENT}", base64(&blob));
        OpensshKey { private: Secret::new(private), public }
    }
}

/// Encodes a string with its length (RFC 4251, 5).
fn string(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("a key is short");
    [&length.to_be_bytes(), bytes].concat()
}

fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|at| u32::from(group.get(at).copied().unwrap_or(0)));
        let bits = a << 16 | b << 8 | c;
        for (at, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let index = usize::try_from(bits >> shift & 63).expect("six bits");
            text.push(if at <= group.len() { char::from(ALPHABET[index]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

    #[test]
    fn generated_key_is_read_by_openssh_and_differs_each_time() {
        let key = OpensshKey::generate().expect("a key");
        assert_ne!(key.public, OpensshKey::generate().expect("a key").public);
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("key");
        fs::write(&file, key.private.expose()).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("set");
        let read = Command::new("ssh-keygen").args(["-y", "-P", "", "-f"]).arg(&file).output();
        let read = read.expect("ssh-keygen, from `.ci/setup test`");
        let printed = String::from_utf8_lossy(&read.stdout).trim().to_owned();
        assert_eq!(printed, key.public, "{}", String::from_utf8_lossy(&read.stderr));
    }

    #[test]
    fn base64_pads_the_last_group() {
        let cases =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
