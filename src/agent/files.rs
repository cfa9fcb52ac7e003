//! Reads the files of the overlay, and removes the token from its file.

use meshd_proto::{AgentConfig, BootPart, Ticket};
use serde::de::DeserializeOwned;
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Maximum size of a file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// A fault of a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {}; it comes with the overlay `agent`", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file holds a secret and others may read it.
    #[error("{} may be read by other users (mode {mode:o}); run: chmod 600 {}", path.display(), path.display())]
    Exposed {
        /// Path of the file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// The contents are invalid.
    #[error("{}: {detail}; reboot the node to get a fresh overlay", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Description of the fault.
        detail: String,
    },
}

/// Reads a bounded file.
pub(super) fn read(path: &Path) -> Result<String, FileError> {
    let fault = |source| FileError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    File::open(path).map_err(fault)?.take(MAX_FILE).read_to_string(&mut text).map_err(fault)?;
    Ok(text)
}

fn parse<T: DeserializeOwned>(path: &Path) -> Result<T, FileError> {
    let text = read(path)?;
    // The error text of serde_json would repeat parts of the file, which may contain a token.
    serde_json::from_str(&text).map_err(|error| FileError::Content {
        path: path.to_owned(),
        detail: format!("it is not what this agent reads, at line {}", error.line()),
    })
}

/// Reads the public configuration.
///
/// # Errors
/// The file is missing, unreadable or of another version.
pub fn config(path: &Path) -> Result<AgentConfig, FileError> {
    let config: AgentConfig = parse(path)?;
    check_version(path, config.version)?;
    Ok(config)
}

/// Reads the boot data.
///
/// # Errors
/// The file is missing, unreadable, of another version, or belongs to another node.
pub fn boot(path: &Path, config: &AgentConfig) -> Result<BootPart, FileError> {
    let boot: BootPart = parse(path)?;
    check_version(path, boot.version)?;
    if boot.node != config.node {
        let detail = format!("it is for node {}, the configuration for {}", boot.node, config.node);
        return Err(FileError::Content { path: path.to_owned(), detail });
    }
    Ok(boot)
}

fn check_version(path: &Path, version: u16) -> Result<(), FileError> {
    if meshd_proto::is_supported_version(version) {
        return Ok(());
    }
    let (oldest, ours) = (meshd_proto::OLDEST, meshd_proto::VERSION);
    let detail = format!("it is of version {version}, this agent reads versions {oldest} to {ours}");
    Err(FileError::Content { path: path.to_owned(), detail })
}

/// Reads an enrolment ticket. It holds a token, so only its owner may read it.
///
/// # Errors
/// The file is missing, unreadable, readable by others, or of another version.
pub fn ticket(path: &Path) -> Result<Ticket, FileError> {
    let ticket: Ticket = parse(path)?;
    let mode = fs::metadata(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(FileError::Exposed { path: path.to_owned(), mode });
    }
    check_version(path, ticket.config.version)?;
    check_version(path, ticket.boot.version)?;
    Ok(ticket)
}

/// Moves a ticket into the state folder as the two files of an overlay, so that the token exists in one place.
///
/// # Errors
/// The ticket stays where it was.
pub fn take_ticket(path: &Path, config: &Path, boot: &Path) -> Result<(), FileError> {
    let ticket = ticket(path)?;
    let text = |text: serde_json::Result<String>| {
        text.map_err(|error| FileError::Content { path: path.to_owned(), detail: error.to_string() })
    };
    let folder = config.parent().unwrap_or(Path::new("/"));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|source| FileError::Write { path: folder.to_owned(), source })?;
    replace(config, &text(serde_json::to_string(&ticket.config))?)?;
    replace(boot, &text(serde_json::to_string(&ticket.boot))?)?;
    fs::remove_file(path).map_err(|source| FileError::Write { path: path.to_owned(), source })
}

/// Removes the token by replacing the file.
///
/// # Errors
/// The old file stays.
pub fn forget_token(path: &Path, boot: &BootPart) -> Result<(), FileError> {
    keep_boot(path, &BootPart { token: None, ..boot.clone() })
}

/// Replaces the boot data, for example to store a new token.
///
/// # Errors
/// The old file stays.
pub fn keep_boot(path: &Path, boot: &BootPart) -> Result<(), FileError> {
    let text = serde_json::to_string(boot)
        .map_err(|error| FileError::Content { path: path.to_owned(), detail: error.to_string() })?;
    replace_soon(path, &text)
}

/// Replaces a file atomically with mode 0600 and flushes it.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), FileError> {
    put(path, text, true)
}

/// Like [`replace`], without flush: a failing disk must not block the link's thread. Atomic after a crash of the program; after a power
/// failure the old file may be back. State folders are in memory anyway.
pub(super) fn replace_soon(path: &Path, text: &str) -> Result<(), FileError> {
    put(path, text, false)
}

fn put(path: &Path, text: &str, is_synced: bool) -> Result<(), FileError> {
    let fresh = path.with_extension("new");
    let write = || {
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        if is_synced {
            file.sync_all()?;
        }
        fs::rename(&fresh, path)
    };
    write().map_err(|source| FileError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::{BootSessionId, Secret, Timestamp};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_token_leaves_the_file_and_everything_else_stays() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("boot.json");
        let boot = BootPart {
            version: 1,
            node: "00000001".parse().expect("a node ID"),
            session: BootSessionId([1; 12]),
            generation: "g".into(),
            issued_at: Timestamp::from_millis(5),
            roots_pem: None,
            token: Some(Secret::new("very-secret".into())),
        };
        fs::write(&path, serde_json::to_string(&boot).expect("plain")).expect("written");
        forget_token(&path, &boot).expect("rewritten");
        let text = fs::read_to_string(&path).expect("there");
        assert!(!text.contains("very-secret"));
        let rest: BootPart = serde_json::from_str(&text).expect("whole");
        assert_eq!(rest, BootPart { token: None, ..boot });
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 1);
    }

    #[test]
    fn a_damaged_file_is_named_without_repeating_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("agent.json");
        assert!(config(&path).expect_err("missing").to_string().contains("agent.json"));
        fs::write(&path, "{\"token\": \"very-secret\"}").expect("written");
        let fault = config(&path).expect_err("damaged").to_string();
        assert!(fault.contains("line 1") && !fault.contains("very-secret"), "{fault}");
    }
}
