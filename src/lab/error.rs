//! Errors of the lab, with hints.

use std::{io, path::PathBuf, time::Duration};

/// Why a rack could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Not allowed to make networks.
    #[error(
        "the lab makes a network namespace, a bridge and taps, which needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN): run it with sudo"
    )]
    NotRoot,
    /// Programs or firmware files are not installed.
    #[error("cannot run the lab: {what} is not installed; run `apt-get install {packages}`")]
    MissingTools {
        /// All of it.
        what: String,
        /// The Debian packages.
        packages: String,
    },
    /// Nodes cannot run the site's agent.
    #[error(transparent)]
    Agent(#[from] meshd_image::catalog::AgentError),
    /// A rack runs in this folder.
    #[error("a rack is up in {}: `meshd lab status` shows it, `meshd lab down` ends it", dir.display())]
    AlreadyUp { dir: PathBuf },
    /// No rack runs in this folder.
    #[error("no rack runs in {}; start one with `meshd lab up --nodes 2`", dir.display())]
    NotUp { dir: PathBuf },
    /// Another `meshd lab` works on this folder at this moment.
    #[error("cannot use {}: another `meshd lab` uses it; wait until it ends", dir.display())]
    Locked { dir: PathBuf },
    /// The options make no rack.
    #[error("{0}")]
    Options(String),
    /// The rack has no such node.
    #[error("the rack has no node `{asked}`; it has {known}")]
    NoSuchNode {
        /// What was asked for.
        asked: String,
        known: String,
    },
    /// A path is too long for a Unix socket.
    #[error("{} is too long for a Unix socket ({LIMIT} bytes): use a shorter --dir", path.display(), LIMIT = super::site::SOCKET_PATH_LIMIT)]
    PathTooLong { path: PathBuf },
    /// A file or folder.
    #[error("cannot {action} {}", path.display())]
    File {
        /// Such as `read`.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("cannot read {}: the record is damaged; end the rack with `meshd lab down`, or remove the folder", path.display())]
    Record { path: PathBuf, source: serde_json::Error },
    /// The user's site file, or what the lab made of it.
    #[error("{0}")]
    Site(String),
    /// An external program could not be started.
    #[error("cannot run `{program}`")]
    Spawn {
        /// With its arguments.
        program: String,
        source: io::Error,
    },
    /// An external program failed.
    #[error("`{program}` failed: {detail}")]
    Failed {
        /// With its arguments.
        program: String,
        detail: String,
    },
    /// A thread could not enter the rack's network namespace.
    #[error("cannot enter the network namespace {name}")]
    Enter { name: String, source: io::Error },
    /// A process does not end.
    #[error("process {pid} ({what}) does not end, not even by SIGKILL")]
    Immortal { pid: i32, what: String },
    /// QEMU's control socket.
    #[error("{node}: QEMU does not answer on its control socket: {detail}")]
    Qmp { node: String, detail: String },
    /// meshd ended by itself.
    #[error("meshd ended by itself ({status}); its last words:\n{log}")]
    CentralDied {
        status: String,
        /// The end of its log.
        log: String,
    },
    /// A state did not come in time.
    #[error("waited {} s for {what}; last seen: {seen}", after.as_secs())]
    Deadline {
        /// For what.
        what: String,
        after: Duration,
        /// What was there instead.
        seen: String,
    },
    /// Ctrl-C, or a signal to end.
    #[error("interrupted")]
    Interrupted,
}

impl LabError {
    /// For `map_err` on file operations.
    pub(super) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| LabError::File { action, path, source }
    }
}
