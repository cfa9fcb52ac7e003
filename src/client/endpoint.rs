//! Opens connections: a Unix socket of this machine, or TCP with TLS.

use crate::ClientError;
use rustls::{ClientConfig, pki_types::ServerName};
use std::{
    fmt::{self, Debug},
    path::PathBuf,
    sync::Arc,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsConnector;

/// The bytes of a connection.
pub trait Stream: Debug + AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: Debug + AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// A Unix socket of this machine.
    Unix(PathBuf),
    /// TCP with TLS.
    Tls {
        /// Host name or address; IPv6 addresses without brackets.
        host: String,
        /// TCP port.
        port: u16,
        /// The name that the certificate must have.
        name: ServerName<'static>,
        /// Trusted authorities and the client's own certificate.
        config: Arc<ClientConfig>,
    },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "{}", path.display()),
            Endpoint::Tls { host, port, .. } if host.contains(':') => write!(f, "https://[{host}]:{port}"),
            Endpoint::Tls { host, port, .. } => write!(f, "https://{host}:{port}"),
        }
    }
}

impl Endpoint {
    pub(crate) async fn connect(&self) -> Result<Box<dyn Stream>, ClientError> {
        let failed = |source| ClientError::Connect { server: self.clone(), source };
        match self {
            Endpoint::Unix(path) => Ok(Box::new(UnixStream::connect(path).await.map_err(failed)?)),
            Endpoint::Tls { host, port, name, config } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
                // Messages are small, in both directions.
                let _ = stream.set_nodelay(true);
                let handshake = TlsConnector::from(config.clone()).connect(name.clone(), stream).await;
                Ok(Box::new(handshake.map_err(|source| ClientError::Tls { server: self.clone(), source })?))
            }
        }
    }
}
