//! The socket of one connection. It sends blobs with `sendfile`, closes connections of slow
//! clients, and reports when a body is written.
//!
//! **Written.** Writing the last byte of a body spends a capability or completes a boot stage.
//! hyper buffers the last frame and drops the body before it is written, but flushes the socket
//! only when that buffer is empty. So a body registers its completion in [`PendingWrites`] with its
//! last frame, and the next flush runs it: by then the kernel has every byte. If the connection
//! ends before, the completion is dropped.
//!
//! **Not copied.** hyper writes slices. A slice within the memory of a [`BlobFile`] is recognised
//! by its address and sent from the file. Other slices, such as response heads, are written as
//! usual.

use super::blob_files::BlobFile;
use crate::connections::limiter::Meter;
use meshd_central::LanClient;
use socket2::SockRef;
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

/// Maximum number of bytes per `sendfile` call, so that other connections progress.
const SEND_AT_ONCE: usize = 2 << 20;

/// Runs when all preceding bytes are written; dropped if the connection ends first.
pub type Completion = Pin<Box<dyn Future<Output = ()> + Send>>;

/// State shared by the socket of a connection and its response bodies.
#[derive(Clone, Default)]
pub struct PendingWrites(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    completions: Vec<Completion>,
    blob_files: Vec<BlobFile>,
    /// True while a body has more frames.
    has_more: bool,
}

impl PendingWrites {
    /// Registers the start of a body.
    pub fn begin(&self) {
        self.lock().has_more = true;
    }

    /// Registers the end of a body. Must be called when the last frame of the body is returned.
    pub fn end(&self, completion: Completion) {
        let mut inner = self.lock();
        inner.has_more = false;
        inner.completions.push(completion);
    }

    /// Registers a blob before a body returns slices of it. The reference to the blob prevents
    /// reuse of its memory.
    pub fn announce(&self, blob_file: BlobFile) {
        self.lock().blob_files.push(blob_file);
    }

    /// Returns the completions to run after a flush; `None` while a body has more frames.
    fn take(&self) -> Option<Vec<Completion>> {
        let mut inner = self.lock();
        if inner.has_more {
            return None;
        }
        inner.blob_files.clear();
        Some(std::mem::take(&mut inner.completions))
    }

    /// Returns the file and offset of a slice, if it belongs to a blob file.
    fn find(&self, slice: &[u8]) -> Option<(Arc<File>, u64)> {
        let inner = self.lock();
        inner.blob_files.iter().find_map(|blob_file| {
            Some((blob_file.file.clone(), offset_within(&blob_file.bytes, slice)?))
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the offset of `slice` in `whole` if `slice` is a part of `whole`.
fn offset_within(whole: &[u8], slice: &[u8]) -> Option<u64> {
    let (outer, inner): (Range<*const u8>, _) = (whole.as_ptr_range(), slice.as_ptr_range());
    let inside = !slice.is_empty() && outer.start <= inner.start && inner.end <= outer.end;
    inside.then(|| (inner.start.addr() - outer.start.addr()) as u64)
}

/// Time limits of a client.
#[derive(Clone, Copy, Debug)]
pub struct WriteTimeouts {
    /// Maximum wait for the client to read.
    pub write: Duration,
    /// Duration of a response after which [`WriteTimeouts::rate`] applies.
    pub response: Duration,
    /// Minimum average rate in bytes per second.
    pub rate: u64,
}

/// Socket of a connection; see the module documentation.
pub struct SendfileWriter {
    stream: TcpStream,
    pending: PendingWrites,
    tasks: TaskTracker,
    timeouts: WriteTimeouts,
    meter: Arc<Meter>,
    client: LanClient,
    /// Set while a write waits for the client.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl SendfileWriter {
    /// Creates the writer. `tasks` runs the completions; `meter` counts bytes.
    pub fn new(
        stream: TcpStream,
        pending: PendingWrites,
        tasks: TaskTracker,
        timeouts: WriteTimeouts,
        meter: Arc<Meter>,
        client: LanClient,
    ) -> Self {
        SendfileWriter { stream, pending, tasks, timeouts, meter, client, deadline: None }
    }

    /// Applies the time limits to the result of a write.
    fn watch(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.deadline = None;
            self.meter.wrote(bytes);
            let (bytes, took) = self.meter.response();
            let slow =
                took > self.timeouts.response && bytes / took.as_secs().max(1) < self.timeouts.rate;
            return if slow { Poll::Ready(Err(too_slow())) } else { written };
        }
        if written.is_ready() {
            return written;
        }
        let timeout = self.timeouts.write;
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + timeout)));
        match deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(too_slow())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Writes the first slices: with `sendfile` if they belong to a blob file, otherwise from
    /// memory.
    fn write_first(&self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let first = bufs.iter().position(|buf| !buf.is_empty()).unwrap_or(0);
        let bufs = &bufs[first..];
        let Some(slice) = bufs.first() else { return Poll::Ready(Ok(0)) };
        if let Some((file, offset)) = self.pending.find(slice) {
            let count = slice.len().min(SEND_AT_ONCE);
            return self.when_writable(cx, count, || {
                match rustix::fs::sendfile(&self.stream, &file, Some(&mut offset.clone()), count)? {
                    // Only this process can open the file, and the file is as long as the blob.
                    0 => Err(io::Error::other("blob file is too short")),
                    sent => Ok(sent),
                }
            });
        }
        let plain =
            bufs.iter().position(|buf| self.pending.find(buf).is_some()).unwrap_or(bufs.len());
        // MSG_MORE: the response head shares a packet with the beginning of the body.
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

    /// Writes when the socket is writable. Fewer bytes than `count` mean that the socket is full.
    /// Returning `WouldBlock` from `try_io` clears the readiness at once. Another call to detect
    /// this costs as much as a small write, and clearing the readiness later could lose a wakeup.
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

impl Drop for SendfileWriter {
    fn drop(&mut self) {
        if self.client.has_ended() {
            // The kernel discards what it has not sent: another machine may have drawn the answers
            // away.
            let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        }
    }
}

fn too_slow() -> io::Error {
    metrics::counter!("meshd_http_slow_readers_total").increment(1);
    io::Error::new(io::ErrorKind::TimedOut, "client reads too slowly")
}

impl AsyncRead for SendfileWriter {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for SendfileWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
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
        // A TCP socket has no buffer in user space.
        if let Some(completions) = self.pending.take() {
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
