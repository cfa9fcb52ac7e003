//! The socket of one connection, which knows when everything that was given to it has been written.
//!
//! "Written" has to mean something: it spends a capability and ends a stage of a boot. An HTTP library takes a body's last frame
//! into its own buffer, and drops the body there and then; the client may be gone by that time. But it flushes its socket only
//! when that buffer is empty. So a body puts what has to happen into [`Handed`] together with its last frame, and the next flush
//! of the socket does it: by then the kernel has every byte. A connection that ends before drops it undone.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep},
};
use tokio_util::task::TaskTracker;

/// What happens once the bytes before it are written; dropped undone if they never are.
pub type Completion = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Shared by the socket of a connection and the bodies that are sent over it.
#[derive(Clone, Default)]
pub struct Handed(Arc<Mutex<Vec<Completion>>>);

impl Handed {
    /// To be called together with handing out a body's last frame.
    pub fn push(&self, completion: Completion) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(completion);
    }

    fn take(&self) -> Vec<Completion> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A TCP stream that gives up on a client that does not read, and tells when it has been flushed.
pub struct Outlet {
    stream: TcpStream,
    handed: Handed,
    tasks: TaskTracker,
    patience: Duration,
    /// Runs while a write waits for the client.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Outlet {
    /// `patience` is how long one write may wait; `tasks` runs the completions.
    pub fn new(stream: TcpStream, handed: Handed, tasks: TaskTracker, patience: Duration) -> Self {
        Outlet { stream, handed, tasks, patience, deadline: None }
    }

    /// Turns a write that has waited too long into an error.
    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let patience = self.patience;
        let deadline =
            self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + patience)));
        match deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Outlet {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Outlet {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if let Poll::Ready(Ok(())) = flushed {
            for completion in self.handed.take() {
                self.tasks.spawn(completion);
            }
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
