//! The address of a server: a Unix socket of this machine, or TCP with TLS.

use rustls::{ClientConfig, pki_types::ServerName};
use std::{fmt, path::PathBuf, sync::Arc};

/// The address of a server.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// A Unix socket of this machine, by its path.
    Unix(PathBuf),
    Tls {
        /// Host name or address; an IPv6 address has no brackets.
        host: String,
        port: u16,
        /// Name that the certificate of the server must contain.
        name: ServerName<'static>,
        /// Trusted authorities and the client certificate.
        config: Arc<ClientConfig>,
    },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "{}", path.display()),
            Endpoint::Tls { host, port, .. } if host.contains(':') => {
                write!(f, "https://[{host}]:{port}")
            }
            Endpoint::Tls { host, port, .. } => write!(f, "https://{host}:{port}"),
        }
    }
}
