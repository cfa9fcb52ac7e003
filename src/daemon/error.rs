//! Why the central node does not run.

use meshd_serve::{admin, bind::BindError, tftp};
use meshd_types::Timestamp;
use std::path::PathBuf;

/// Reason why the central node does not run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("cannot read overlays, or their secrets")]
    Overlays(#[source] meshd_config::Faults),
    #[error("{} lacks {missing}", dir.display())]
    Loaders { dir: PathBuf, missing: String },
    #[error(transparent)]
    Agent(#[from] meshd_image::catalog::AgentError),
    #[error("cannot start: the clock says {now}, and this program was built at {built}")]
    Clock { now: Timestamp, built: Timestamp },
    #[error(transparent)]
    Store(#[from] meshd_store::StoreError),
    #[error(transparent)]
    Trust(#[from] meshd_trust::TrustError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Admin(#[from] admin::SocketError),
    #[error(transparent)]
    AdminHttps(#[from] admin::HttpsError),
    #[error("cannot listen for signals")]
    Signal(#[source] std::io::Error),
    #[error(transparent)]
    TftpService(#[from] tftp::TftpError),
    #[error("the task `{task}` panicked")]
    Panicked { task: &'static str },
    #[error("the task `{task}` ended unexpectedly")]
    EndedEarly { task: &'static str },
}

meshd_types::hints!(DaemonError {
    DaemonError::Overlays(_) => "`meshd check` shows the same faults";
    DaemonError::Loaders { .. } => "install Debian's package ipxe, or set [boot].loaders_dir";
    DaemonError::Clock { .. } => "set the clock with `date` or a time service, and start again";
    DaemonError::Panicked { .. } => "report this bug with the log above";
    DaemonError::EndedEarly { .. } => "report this bug with the log above";
    @source DaemonError::Agent(source) => source;
    @source DaemonError::Store(source) => source;
    @source DaemonError::Trust(source) => source;
    @source DaemonError::Bind(source) => source;
    @source DaemonError::Admin(source) => source;
    @source DaemonError::AdminHttps(source) => source;
});
