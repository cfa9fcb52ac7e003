//! Opens connections over a Unix socket of this machine, or over TCP with TLS.

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

/// A byte stream to a server.
pub trait Stream: Debug + AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: Debug + AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

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
                // Nagle's algorithm would delay the small messages of both directions.
                let _ = stream.set_nodelay(true);
                let handshake = TlsConnector::from(config.clone()).connect(name.clone(), stream).await;
                Ok(Box::new(handshake.map_err(|source| ClientError::Tls { server: self.clone(), source })?))
            }
        }
    }
}
