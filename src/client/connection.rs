//! Connects to a server.

use crate::{ClientError, Endpoint};
use std::fmt::Debug;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsConnector;

/// A byte stream to a server.
pub trait Stream: Debug + AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: Debug + AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Endpoint {
    pub(crate) async fn connect(&self) -> Result<Box<dyn Stream>, ClientError> {
        let failed = |source| ClientError::Connect { server: self.clone(), source };
        match self {
            Endpoint::Unix(path) => Ok(Box::new(UnixStream::connect(path).await.map_err(failed)?)),
            Endpoint::Tls { host, port, name, config } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
                // Nagle's algorithm would delay the small messages of both directions.
                let _ = stream.set_nodelay(true);
                let handshake =
                    TlsConnector::from(config.clone()).connect(name.clone(), stream).await;
                Ok(Box::new(
                    handshake
                        .map_err(|source| ClientError::Tls { server: self.clone(), source })?,
                ))
            }
        }
    }
}
