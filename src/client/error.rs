//! Why a call failed.

use crate::Endpoint;
use bytes::Bytes;
use hyper::StatusCode;
use std::{error::Error, io};
use tokio_tungstenite::tungstenite;

/// The part of a call that took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// TCP and TLS.
    Connect,
    /// The request, and the head of the response.
    Response,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection.
    #[error("cannot connect to {server}: {source}")]
    Connect {
        /// Where the server listens.
        server: Endpoint,
        source: io::Error,
    },
    /// A connection, but no TLS session.
    #[error("no TLS with {server}: {source}")]
    Tls {
        /// Where the server listens.
        server: Endpoint,
        source: io::Error,
    },
    /// The server took too long.
    #[error("{server} did not answer in time")]
    Timeout {
        /// Where the server listens.
        server: Endpoint,
        step: Step,
    },
    /// The connection broke, or what came is not HTTP.
    #[error("the connection broke: {0}")]
    Connection(#[source] hyper::Error),
    /// The connection broke, or what came is no WebSocket.
    #[error("no WebSocket: {0}")]
    WebSocket(#[source] Box<tungstenite::Error>),
    /// The server rejected a WebSocket.
    #[error("status {status}")]
    Rejected {
        /// Status of the response.
        status: StatusCode,
        /// Body of the response.
        body: Bytes,
    },
    /// The body is larger than the caller accepts.
    #[error("the response has more than {limit} bytes")]
    TooLarge {
        /// Accepted bytes.
        limit: usize,
    },
}

impl ClientError {
    /// The TLS error that caused this error, if one did. A rejection of the client's certificate is such an error: in TLS 1.3 it
    /// arrives after the handshake, as an alert on the first read.
    pub fn tls_error(&self) -> Option<&rustls::Error> {
        let mut cause: Option<&(dyn Error + 'static)> = Some(self);
        while let Some(error) = cause {
            // `io::Error::source` skips the error that it wraps.
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
