//! The body of a response.

use crate::ClientError;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::task::JoinSet;

/// The body of a response, read while it arrives. Dropping the body closes the connection.
#[derive(Debug)]
pub struct ResponseBody {
    pub(crate) body: Incoming,
    pub(crate) _connection: JoinSet<Result<(), hyper::Error>>,
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads a complete body of at most `limit` bytes.
///
/// # Errors
/// The connection fails, or the body is larger than `limit`.
pub async fn collect(body: ResponseBody, limit: usize) -> Result<Bytes, ClientError> {
    let collected = Limited::new(body, limit).collect().await;
    // The only other error is a `LengthLimitError`.
    let failed = |error: Box<dyn Error + Send + Sync>| match error.downcast::<hyper::Error>() {
        Ok(error) => ClientError::Connection(*error),
        Err(_) => ClientError::TooLarge { limit },
    };
    Ok(collected.map_err(failed)?.to_bytes())
}
