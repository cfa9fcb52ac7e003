//! A body of known bytes that tells when its last one was written.

use super::outlet::{Completion, Handed};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

/// See [`tracked`].
struct Tracked {
    rest: Bytes,
    handed: Handed,
    completion: Option<Completion>,
}

/// `completion` runs once the last of these bytes is in the socket, and is dropped if that never happens.
pub fn tracked(bytes: Bytes, handed: Handed, completion: Completion) -> axum::body::Body {
    axum::body::Body::new(Tracked { rest: bytes, handed, completion: Some(completion) })
}

impl Body for Tracked {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // All at once: it is a view of what is in memory anyway, and the socket takes what it can.
        let frame = std::mem::take(&mut self.rest);
        if let Some(completion) = self.completion.take() {
            self.handed.push(completion);
        }
        Poll::Ready((!frame.is_empty()).then(|| Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
