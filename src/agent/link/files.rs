//! Reads and replaces the files of the overlay.

use meshd_proto::{AgentConfig, BootPart, Ticket};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Maximum size of a file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// An error of a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {}; it comes with the overlay `agent`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// Other users may read a file with a secret.
    #[error("{} is readable by other users (mode {mode:o}); run: chmod 600 {}", path.display(), path.display())]
    Exposed { path: PathBuf, mode: u32 },
    #[error("{}: {detail}; reboot the node to get a new overlay", path.display())]
    Content { path: PathBuf, detail: String },
}

/// Reads a bounded file.
pub(crate) fn read(path: &Path) -> Result<String, FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    File::open(path).map_err(failed)?.take(MAX_FILE).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Reads the first bytes of a file, at most `limit`.
pub(crate) fn read_beginning(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut beginning = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut beginning)?;
    Ok(beginning)
}

fn parse<T: DeserializeOwned>(path: &Path) -> Result<T, FileError> {
    let text = read(path)?;
    // The error text of serde_json would repeat parts of the file, which may contain a token.
    serde_json::from_str(&text).map_err(|error| FileError::Content {
        path: path.to_owned(),
        detail: format!("invalid content at line {}", error.line()),
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
    let oldest = meshd_proto::OLDEST;
    let ours = meshd_proto::VERSION;
    let detail =
        format!("unsupported version {version}: this agent reads versions {oldest} to {ours}");
    Err(FileError::Content { path: path.to_owned(), detail })
}

/// Reads an enrolment ticket. A ticket contains a token, so only its owner may read the file.
pub fn ticket(path: &Path) -> Result<Ticket, FileError> {
    let ticket: Ticket = parse(path)?;
    let mode = fs::metadata(path)
        .map_err(|source| FileError::Read { path: path.to_owned(), source })?
        .mode()
        & 0o777;
    if mode & 0o077 != 0 {
        return Err(FileError::Exposed { path: path.to_owned(), mode });
    }
    check_version(path, ticket.config.version)?;
    check_version(path, ticket.boot.version)?;
    Ok(ticket)
}

/// Moves a ticket into the state folder as the two files of an overlay, so that only one file
/// contains the token. On failure the ticket remains.
pub fn import_ticket(path: &Path, config: &Path, boot: &Path) -> Result<(), FileError> {
    let ticket = ticket(path)?;
    create_private_folder(config.parent().unwrap_or(Path::new("/")))?;
    replace(config, &to_json(path, &ticket.config)?)?;
    replace(boot, &to_json(path, &ticket.boot)?)?;
    fs::remove_file(path).map_err(|source| FileError::Write { path: path.to_owned(), source })
}

/// Replaces the boot data, to store or remove a token.
pub fn store_boot(path: &Path, boot: &BootPart) -> Result<(), FileError> {
    replace_unsynced(path, &to_json(path, boot)?)
}

fn to_json(path: &Path, value: &impl Serialize) -> Result<String, FileError> {
    serde_json::to_string(value)
        .map_err(|error| FileError::Content { path: path.to_owned(), detail: error.to_string() })
}

/// Creates a folder that only root may read.
pub(crate) fn create_private_folder(folder: &Path) -> Result<(), FileError> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    created.map_err(|source| FileError::Write { path: folder.to_owned(), source })
}

/// Replaces a file atomically with mode 0600 and flushes it.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), FileError> {
    write(path, text, true)
}

/// Like [`replace`], without flush, so that a failing disk does not block the link's thread. After
/// a power failure the old file may reappear.
pub(crate) fn replace_unsynced(path: &Path, text: &str) -> Result<(), FileError> {
    write(path, text, false)
}

/// Removes a file. A missing file is not an error.
pub(crate) fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn write(path: &Path, text: &str, is_synced: bool) -> Result<(), FileError> {
    let new = path.with_extension("new");
    let result = (|| {
        remove_if_exists(&new)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        if is_synced {
            file.sync_all()?;
        }
        fs::rename(&new, path)
    })();
    result.map_err(|source| FileError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::{BootSessionId, Secret, Timestamp};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn forgetting_the_token_keeps_the_rest_of_the_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("boot.json");
        let boot = BootPart {
            version: 1,
            node: "00000001".parse().expect("a node ID"),
            session: BootSessionId([1; 12]),
            generation: "g".into(),
            issued_at: Timestamp::from_millis(5),
            roots_pem: None,
            http_port: 8080,
            token: Some(Secret::new("very-secret".into())),
        };
        fs::write(&path, serde_json::to_string(&boot).expect("plain")).expect("written");
        let boot = BootPart { token: None, ..boot };
        store_boot(&path, &boot).expect("rewritten");
        let text = fs::read_to_string(&path).expect("there");
        assert!(!text.contains("very-secret"));
        let rest: BootPart = serde_json::from_str(&text).expect("whole");
        assert_eq!(rest, boot);
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 1);
    }

    #[test]
    fn invalid_file_is_named_without_its_content() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("agent.json");
        assert!(config(&path).expect_err("missing").to_string().contains("agent.json"));
        fs::write(&path, "{\"token\": \"very-secret\"}").expect("written");
        let error = config(&path).expect_err("damaged").to_string();
        assert!(error.contains("line 1") && !error.contains("very-secret"), "{error}");
    }
}
