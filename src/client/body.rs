//! The body of a response.

use crate::ClientError;
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tokio::task::JoinSet;

/// The body of a response, read while it arrives. Dropping the body closes the connection.
#[derive(Debug)]
pub struct ResponseBody {
    body: Incoming,
    _connection: JoinSet<Result<(), hyper::Error>>,
}

impl ResponseBody {
    pub(crate) fn new(body: Incoming, connection: JoinSet<Result<(), hyper::Error>>) -> Self {
        ResponseBody { body, _connection: connection }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads a whole body of at most `limit` bytes.
///
/// # Errors
/// The connection fails, or the body is larger than `limit`.
pub async fn collect(body: ResponseBody, limit: usize) -> Result<Bytes, ClientError> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => Err(match error.downcast::<hyper::Error>() {
            Ok(error) => ClientError::Connection(*error),
            Err(error) => {
                debug_assert!(error.is::<LengthLimitError>());
                ClientError::TooLarge { limit }
            }
        }),
    }
}
