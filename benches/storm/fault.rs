//! Why a machine had to begin a step again, or gave up.

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("DHCP: {0}")]
    Dhcp(&'static str),
    #[error("TFTP: {0}")]
    Tftp(String),
    #[error("HTTP: {0}")]
    Http(String),
    /// The script is no boot script; iPXE waits and asks again.
    #[error("not booted: {reason}")]
    Wait {
        /// What the script says.
        reason: String,
        /// For so many seconds.
        seconds: u64,
    },
    /// The overlay is not what a node could use.
    #[error("overlay: {0}")]
    Overlay(String),
    /// TLS, WebSocket, or what is said on it.
    #[error("agent: {0}")]
    Agent(String),
    /// A socket.
    #[error("{}", .0.kind())]
    Io(#[from] std::io::Error),
}

impl From<tokio::time::error::Elapsed> for Fault {
    fn from(_: tokio::time::error::Elapsed) -> Self {
        Fault::Io(std::io::ErrorKind::TimedOut.into())
    }
}
