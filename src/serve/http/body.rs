//! A response body of known bytes that reports when its last byte is written.

use super::sendfile_writer::{Completion, PendingWrites};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

/// Body of [`tracked`].
struct TrackedBody {
    /// Remaining pieces. None of them is empty.
    rest: VecDeque<Bytes>,
    pending: PendingWrites,
    completion: Option<Completion>,
}

/// Returns a body of these pieces. `completion` runs when the last byte is in the socket, and is
/// dropped if that never happens.
pub fn tracked(
    pieces: Vec<Bytes>,
    pending: PendingWrites,
    completion: Completion,
) -> axum::body::Body {
    let rest: VecDeque<Bytes> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
    if rest.is_empty() {
        // hyper does not poll an empty body for its last frame.
        pending.end(completion);
        return axum::body::Body::empty();
    }
    pending.begin();
    axum::body::Body::new(TrackedBody { rest, pending, completion: Some(completion) })
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // Frames are whole pieces, because the pieces are views of existing memory. The socket
        // takes as many bytes as it can.
        let frame = self.rest.pop_front();
        if self.rest.is_empty()
            && let Some(completion) = self.completion.take()
        {
            self.pending.end(completion);
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
