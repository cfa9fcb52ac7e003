//! Closes a connection without the loss of its last response (RFC 9112, 9.6).
//!
//! A response may precede the end of its request: a refusal does not wait for an upload. If the
//! server closes a socket with unread input, the kernel resets the connection, and the client loses
//! the response. Therefore the server first ends its side, then reads and discards input until the
//! client ends the other side, within [`LingerLimits`].

use axum::{BoxError, body::Body};
use bytes::Bytes;
use hyper::{
    Request,
    body::{Frame, SizeHint},
};
use std::{
    future::Future as _,
    io::{self, IoSlice},
    mem::MaybeUninit,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Size of the buffer for discarded input, in bytes.
const BUFFER: usize = 16 * 1024;

/// Limits of the input that is discarded at the end of a connection.
#[derive(Clone, Copy)]
pub struct LingerLimits {
    pub time: Duration,
    pub bytes: usize,
}

impl Default for LingerLimits {
    fn default() -> Self {
        // An idle connection may last as long, and a client that sends more has its response by
        // then.
        LingerLimits { time: Duration::from_secs(10), bytes: 16 << 20 }
    }
}

/// Whether a connection has input that no request has read.
#[derive(Clone, Debug, Default)]
pub struct UnreadInput(Arc<AtomicBool>);

impl UnreadInput {
    /// Returns the request with a body that reports its end.
    pub fn watch<B>(&self, request: Request<B>) -> Request<Body>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        request.map(|body| {
            self.0.store(!body.is_end_stream(), Relaxed);
            Body::new(WatchedBody { body, unread: self.clone() })
        })
    }
}

/// A request body that clears [`UnreadInput`] at its end.
struct WatchedBody<B> {
    body: B,
    unread: UnreadInput,
}

impl<B: hyper::body::Body<Data = Bytes> + Unpin> hyper::body::Body for WatchedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.unread.0.store(false, Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that discards unread input during its shutdown.
pub struct LingeringClose<S> {
    stream: S,
    unread: UnreadInput,
    limits: LingerLimits,
    /// Set once the server's side has ended.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> LingeringClose<S> {
    /// Wraps a stream. The returned [`UnreadInput`] must watch each request.
    pub fn new(stream: S, limits: LingerLimits) -> (Self, UnreadInput) {
        let unread = UnreadInput::default();
        (LingeringClose { stream, unread: unread.clone(), limits, deadline: None }, unread)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LingeringClose<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            // Until a request takes it: the head may be malformed.
            self.unread.0.store(true, Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringClose<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.deadline.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        }
        let deadline = this.deadline.get_or_insert_with(|| Box::pin(sleep(this.limits.time)));
        while this.unread.0.load(Relaxed)
            && this.limits.bytes > 0
            && deadline.as_mut().poll(cx).is_pending()
        {
            let mut memory = [MaybeUninit::uninit(); BUFFER];
            let mut discarded = ReadBuf::uninit(&mut memory);
            let read = ready!(Pin::new(&mut this.stream).poll_read(cx, &mut discarded));
            this.limits.bytes = this.limits.bytes.saturating_sub(discarded.filled().len());
            if read.is_err() || discarded.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    /// Reads one byte of two, so that input is unread.
    async fn begun(limits: LingerLimits) -> (DuplexStream, LingeringClose<DuplexStream>) {
        let (mut client, server) = duplex(64);
        let (mut server, _) = LingeringClose::new(server, limits);
        client.write_all(b"ab").await.expect("there is space");
        server.read_exact(&mut [0]).await.expect("it has arrived");
        (client, server)
    }

    #[tokio::test]
    async fn unread_input_is_discarded_until_the_client_closes() {
        let (mut client, mut server) = begun(LingerLimits::default()).await;
        let upload = async {
            client.write_all(&[7; 10_000]).await.expect("the server reads on");
            drop(client);
        };
        let (closed, ()) = tokio::join!(server.shutdown(), upload);
        closed.expect("closed");
    }

    #[tokio::test]
    async fn lingering_ends_at_its_time_and_size_limit() {
        let (_silent, mut server) = begun(LingerLimits { time: Duration::ZERO, bytes: 10 }).await;
        server.shutdown().await.expect("closed");
        let (mut endless, mut server) =
            begun(LingerLimits { time: Duration::MAX, bytes: 1000 }).await;
        let upload = async { while endless.write_all(&[7; 64]).await.is_ok() {} };
        let close = async {
            server.shutdown().await.expect("closed");
            drop(server);
        };
        tokio::join!(close, upload);
    }
}
