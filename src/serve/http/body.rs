//! A body of known bytes that tells when its last one was written.

use super::outlet::{Completion, Handed};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

/// See [`tracked`].
struct Tracked {
    /// None of them is empty.
    rest: VecDeque<Bytes>,
    handed: Handed,
    completion: Option<Completion>,
}

/// `completion` runs once the last of these bytes is in the socket, and is dropped if that never happens.
pub fn tracked(pieces: Vec<Bytes>, handed: Handed, completion: Completion) -> axum::body::Body {
    let rest: VecDeque<Bytes> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
    if rest.is_empty() {
        // Nobody asks an empty body for its last frame.
        handed.end(completion);
        return axum::body::Body::empty();
    }
    handed.begin();
    axum::body::Body::new(Tracked { rest, handed, completion: Some(completion) })
}

impl Body for Tracked {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // Whole pieces: they are views of what is in memory anyway, and the socket takes what it can.
        let frame = self.rest.pop_front();
        if self.rest.is_empty()
            && let Some(completion) = self.completion.take()
        {
            self.handed.end(completion);
        }
        Poll::Ready(frame.map(|frame| Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.iter().map(|piece| piece.len() as u64).sum())
    }
}
