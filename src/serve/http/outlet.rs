//! The socket of one connection: it sends what is also in a file without copying it, gives up on a client that does not read, and
//! knows when everything that was given to it has been written.
//!
//! **Written** has to mean something: it spends a capability and ends a stage of a boot. An HTTP library takes a body's last frame
//! into its own buffer, and drops the body there and then; the client may be gone by that time. But it flushes its socket only
//! when that buffer is empty. So a body puts what has to happen into [`Handed`] together with its last frame, and the next flush
//! of the socket does it: by then the kernel has every byte. A connection that ends before drops it undone.
//!
//! **Not copied**: an HTTP library writes slices, and a slice of a [`Twin`]'s memory is known by where it lies. The same bytes are
//! in the twin's file, and the kernel sends them from there (`sendfile`). What lies elsewhere, such as a head, is written as usual.

use super::twins::Twin;
use crate::serve::limiter::Meter;
use std::{
    fs::File,
    future::Future,
    io::{self, IoSlice},
    ops::Range,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep},
};
use tokio_util::task::TaskTracker;

/// Most that one call sends from a file, in bytes: others have their turn.
const SEND_AT_ONCE: usize = 2 << 20;

/// What happens once the bytes before it are written; dropped undone if they never are.
pub type Completion = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Shared by the socket of a connection and the bodies that are sent over it.
#[derive(Clone, Default)]
pub struct Handed(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    completions: Vec<Completion>,
    twins: Vec<Twin>,
    /// A body has begun and has more to hand out.
    under_way: bool,
}

impl Handed {
    /// A body begins.
    pub fn begin(&self) {
        self.lock().under_way = true;
    }

    /// To be called together with handing out a body's last frame.
    pub fn end(&self, completion: Completion) {
        let mut inner = self.lock();
        inner.under_way = false;
        inner.completions.push(completion);
    }

    /// To be called before a body hands out slices of this memory. Holding it keeps anything else from lying there.
    pub fn announce(&self, twin: Twin) {
        self.lock().twins.push(twin);
    }

    /// Everything that was handed out is written: what has to happen now; `None` while a body has more to hand out.
    fn take(&self) -> Option<Vec<Completion>> {
        let mut inner = self.lock();
        if inner.under_way {
            return None;
        }
        inner.twins.clear();
        Some(std::mem::take(&mut inner.completions))
    }

    /// Where a slice lies in a file, if it does.
    fn find(&self, slice: &[u8]) -> Option<(Arc<File>, u64)> {
        let inner = self.lock();
        inner.twins.iter().find_map(|twin| Some((twin.file.clone(), offset_within(&twin.bytes, slice)?)))
    }
}

impl Handed {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where `slice` begins in `whole`, if it is a part of it.
fn offset_within(whole: &[u8], slice: &[u8]) -> Option<u64> {
    let (outer, inner): (Range<*const u8>, _) = (whole.as_ptr_range(), slice.as_ptr_range());
    let inside = !slice.is_empty() && outer.start <= inner.start && inner.end <= outer.end;
    inside.then(|| (inner.start.addr() - outer.start.addr()) as u64)
}

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Time that one write may wait for the client to read.
    pub write: Duration,
    /// Time that any response may take, however slow.
    pub response: Duration,
    /// Bytes a second that a response must go out with, on the whole, once that time is over.
    pub rate: u64,
}

/// A TCP stream that gives up on a client that does not read, and tells when it has been flushed.
pub struct Outlet {
    stream: TcpStream,
    handed: Handed,
    tasks: TaskTracker,
    patience: Patience,
    meter: Arc<Meter>,
    /// Runs while a write waits for the client.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Outlet {
    /// `tasks` runs the completions; `meter` is told what is read and written.
    pub fn new(stream: TcpStream, handed: Handed, tasks: TaskTracker, patience: Patience, meter: Arc<Meter>) -> Self {
        Outlet { stream, handed, tasks, patience, meter, deadline: None }
    }

    /// Turns a write that has waited too long into an error, and a response that is too slow on the whole.
    fn watch(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.deadline = None;
            self.meter.wrote(bytes);
            let (bytes, took) = self.meter.response();
            let slow = took > self.patience.response && bytes / took.as_secs().max(1) < self.patience.rate;
            return if slow { Poll::Ready(Err(too_slow())) } else { written };
        }
        if written.is_ready() {
            return written;
        }
        let patience = self.patience.write;
        let deadline =
            self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + patience)));
        match deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(too_slow())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Writes what comes first of some slices: from a file if it can, else from memory.
    fn write_first(&self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let first = bufs.iter().position(|buf| !buf.is_empty()).unwrap_or(0);
        let bufs = &bufs[first..];
        let Some(slice) = bufs.first() else { return Poll::Ready(Ok(0)) };
        if let Some((file, offset)) = self.handed.find(slice) {
            let count = slice.len().min(SEND_AT_ONCE);
            return self.when_writable(cx, count, || {
                match rustix::fs::sendfile(&self.stream, &file, Some(&mut offset.clone()), count)? {
                    // Nobody else has the file, and it is as long as the memory.
                    0 => Err(io::Error::other("a file ended before its time")),
                    sent => Ok(sent),
                }
            });
        }
        let plain = bufs.iter().position(|buf| self.handed.find(buf).is_some()).unwrap_or(bufs.len());
        // A head goes out with the beginning of the body, not in a packet of its own.
        let flags = match plain < bufs.len() {
            true => rustix::net::SendFlags::MORE,
            false => rustix::net::SendFlags::empty(),
        } | rustix::net::SendFlags::NOSIGNAL;
        let count = bufs[..plain].iter().map(|buf| buf.len()).sum();
        self.when_writable(cx, count, || {
            let mut control = rustix::net::SendAncillaryBuffer::default();
            Ok(rustix::net::sendmsg(&self.stream, &bufs[..plain], &mut control, flags)?)
        })
    }

    /// Writes once the socket takes something. Fewer bytes than `count` mean that it is full: that is noted in the same breath, for
    /// the call that would only be told so costs as much as a small write. (Noted later, an edge that came meanwhile were lost.)
    fn when_writable(
        &self,
        cx: &mut Context<'_>,
        count: usize,
        mut write: impl FnMut() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            let mut part = None;
            let written = self.stream.try_io(Interest::WRITABLE, || match write()? {
                written if written < count => {
                    part = Some(written);
                    Err(io::ErrorKind::WouldBlock.into())
                }
                written => Ok(written),
            });
            match (part, written) {
                (Some(part), _) => return Poll::Ready(Ok(part)),
                (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                (None, written) => return Poll::Ready(written),
            }
        }
    }
}

fn too_slow() -> io::Error {
    metrics::counter!("meshd_http_slow_readers_total").increment(1);
    io::Error::new(io::ErrorKind::TimedOut, "the client does not read, or too slowly")
}

impl AsyncRead for Outlet {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Outlet {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.write_first(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A TCP socket has no buffer of its own to flush.
        if let Some(completions) = self.handed.take() {
            self.meter.flushed();
            for completion in completions {
                self.tasks.spawn(completion);
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
