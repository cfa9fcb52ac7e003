//! Errors of the lab, with hints.

use std::{io, path::PathBuf, time::Duration};

#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The process may not create networks.
    #[error(
        "the lab makes a network namespace, a bridge and taps, which needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN): run it with sudo"
    )]
    NotRoot,
    #[error("cannot run the lab: {missing} is not installed")]
    MissingTools {
        missing: String,
        /// Debian packages of the missing programs and files.
        packages: String,
    },
    /// The agent of the site cannot run on nodes.
    #[error(transparent)]
    Agent(#[from] meshd_image::catalog::AgentError),
    #[error("a rack is up in {}: `meshd lab status` shows it, `meshd lab down` ends it", dir.display())]
    AlreadyUp { dir: PathBuf },
    #[error("no rack runs in {}", dir.display())]
    NotUp { dir: PathBuf },
    #[error("cannot use {}: another `meshd lab` uses it", dir.display())]
    Locked { dir: PathBuf },
    #[error("{0}")]
    Options(String),
    #[error("the rack has no node `{name}`")]
    NoSuchNode { name: String, known: String },
    #[error("{} is too long for a Unix socket ({LIMIT} bytes): use a shorter --dir", path.display(), LIMIT = super::site::SOCKET_PATH_LIMIT)]
    PathTooLong { path: PathBuf },
    #[error("cannot {action} {}", path.display())]
    File {
        /// Verb, such as `read`.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The record is damaged.
    #[error("cannot read {}: the record is damaged", path.display())]
    Record { path: PathBuf, source: serde_json::Error },
    /// The user's site file or the derived one has faults.
    #[error("{0}")]
    Site(String),
    #[error("cannot run `{program}`")]
    Spawn {
        /// Program with its arguments.
        program: String,
        source: io::Error,
    },
    #[error("`{program}` failed: {detail}")]
    Failed {
        /// Program with its arguments.
        program: String,
        detail: String,
    },
    #[error("cannot enter the network namespace {name}")]
    Enter { name: String, source: io::Error },
    #[error("process {pid} ({program}) does not end, not even by SIGKILL")]
    Unkillable { pid: i32, program: String },
    /// QEMU does not respond.
    #[error("{node}: QEMU does not answer on its control socket: {detail}")]
    Qmp { node: String, detail: String },
    #[error("meshd ended by itself ({status}); end of its log:\n{log}")]
    CentralDied {
        status: String,
        /// Last lines of the program's log.
        log: String,
    },
    /// The deadline passed before the awaited state was reached.
    #[error("waited {} s for {awaited}; last seen: {observed}", timeout.as_secs())]
    Deadline {
        /// The awaited state.
        awaited: String,
        timeout: Duration,
        /// The last observed state.
        observed: String,
    },
    /// Ctrl-C, or a signal to end.
    #[error("interrupted")]
    Interrupted,
}

meshd_types::hints!(LabError {
    LabError::MissingTools { packages, .. } => "run `apt-get install {packages}`";
    LabError::NotUp { .. } => "start one with `meshd lab up --nodes 2`";
    LabError::Locked { .. } => "wait until it ends";
    LabError::NoSuchNode { known, .. } => "name one of {known}";
    LabError::Record { .. } => "end the rack with `meshd lab down`, or remove the folder";
    @source LabError::Agent(source) => source;
});

impl From<meshd_config::Faults> for LabError {
    fn from(faults: meshd_config::Faults) -> Self {
        LabError::Site(faults.to_string())
    }
}

impl LabError {
    /// Returns a conversion for `map_err` on file operations.
    pub(super) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| LabError::File { action, path, source }
    }
}
