//! The part of an overlay for one boot. It is the last member and names node and session, so a
//! truncated archive is found, too.

use super::{manifest::read_below, unpack::open_root};
use meshd_proto::{BOOT_FILE, BootPart};
use meshd_types::{BootSessionId, NodeId};
use std::{io, path::Path};

/// Maximum size of the file in bytes.
const MAX_BOOT_FILE: u64 = 1 << 20;

/// The overlay is not the one of this boot. Messages never contain the file: it has a token.
#[derive(Debug, thiserror::Error)]
pub enum BootPartError {
    #[error("read {BOOT_FILE}: {0}")]
    Read(io::Error),
    #[error("read {BOOT_FILE}: it is not valid")]
    Malformed,
    #[error("check {BOOT_FILE}: it is of node {node} and boot session {session}, not of this boot")]
    Foreign { node: NodeId, session: BootSessionId },
}

/// Reads the file in a root.
pub fn read_boot_part(root: &Path) -> Result<BootPart, BootPartError> {
    let read = || read_below(&open_root(root)?, BOOT_FILE.trim_start_matches('/'), MAX_BOOT_FILE);
    let bytes = read().map_err(BootPartError::Read)?;
    serde_json::from_slice(&bytes).map_err(|_| BootPartError::Malformed)
}

/// Checks node and session of the overlay in the new root.
pub fn require_boot_part(
    root: &Path,
    node: NodeId,
    session: BootSessionId,
) -> Result<(), BootPartError> {
    let part = read_boot_part(root)?;
    if (part.node, part.session) == (node, session) {
        return Ok(());
    }
    Err(BootPartError::Foreign { node: part.node, session: part.session })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn overlay_of_another_boot_is_refused_without_its_token() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(root.path().join("etc/meshd")).expect("made");
        let session = "7cd57a24ea8a2b04d4dd1d1d";
        let node: NodeId = "abcdefgh".parse().expect("an ID");
        let text = serde_json::json!({
            "version": 2, "node": node, "session": session, "generation": "g",
            "issued_at": "2026-11-27T15:00:00.000Z", "http_port": 8080, "token": "secret",
        });
        let file = root.path().join("etc/meshd/boot.json");
        fs::write(&file, text.to_string()).expect("written");
        let require =
            |session: &str| require_boot_part(root.path(), node, session.parse().expect("an ID"));
        require(session).expect("of this boot");
        let error = require("000000000000000000000000").expect_err("of another").to_string();
        assert!(error.contains(session) && !error.contains("secret"), "{error}");
        fs::write(&file, "{\"token\":\"secret").expect("written");
        assert_eq!(
            require(session).expect_err("cut").to_string(),
            "read /etc/meshd/boot.json: it is not valid"
        );
    }
}
