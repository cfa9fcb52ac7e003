//! Errors of a call.

use crate::Endpoint;
use bytes::Bytes;
use hyper::StatusCode;
use std::{error::Error, io};
use tokio_tungstenite::tungstenite;

/// The stage of a call that exceeded its time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStage {
    /// TCP connection and TLS handshake.
    Connect,
    /// Request and head of the response.
    Response,
}

/// The error of a call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The client cannot connect to the server.
    #[error("cannot connect to {server}: {source}")]
    Connect { server: Endpoint, source: io::Error },
    /// The connection is open, but the TLS handshake failed.
    #[error("no TLS with {server}: {source}")]
    Tls { server: Endpoint, source: io::Error },
    /// The server exceeded a time limit.
    #[error("{server} did not answer in time")]
    Timeout { server: Endpoint, stage: CallStage },
    /// The connection failed, or the response is not HTTP.
    #[error("the connection broke: {0}")]
    Connection(#[source] hyper::Error),
    /// The connection failed, or the response is not a WebSocket.
    #[error("no WebSocket: {0}")]
    WebSocket(#[source] Box<tungstenite::Error>),
    /// The server rejected the upgrade to a WebSocket.
    #[error("status {status}")]
    Rejected { status: StatusCode, body: Bytes },
    /// The body is larger than the caller accepts.
    #[error("the response has more than {limit} bytes")]
    TooLarge {
        /// Maximum size of the body, in bytes.
        limit: usize,
    },
}

impl ClientError {
    /// Returns the TLS error that caused this error, if any. A rejected client certificate is a TLS
    /// error: in TLS 1.3 the alert arrives after the handshake, on the first read.
    pub fn tls_error(&self) -> Option<&rustls::Error> {
        let mut cause: Option<&(dyn Error + 'static)> = Some(self);
        while let Some(error) = cause {
            // `io::Error::source` skips the wrapped error.
            let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            let wrapped = wrapped.and_then(|wrapped| wrapped.downcast_ref::<rustls::Error>());
            if let Some(error) = wrapped.or_else(|| error.downcast_ref()) {
                return Some(error);
            }
            cause = error.source();
        }
        None
    }
}
