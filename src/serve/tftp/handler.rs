//! async-tftp asks here for what it shall send.

use super::table::{Content, Name, Table};
use crate::serve::central::Fetched;
use async_tftp::{packet, server::Handler};
use bytes::Bytes;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::{
    fs::File,
    io::{AsyncRead, BufReader, ReadBuf, Sink},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

/// Transfers at one time. Each has a socket and a window of blocks.
pub const MAX_TRANSFERS: usize = 512;
/// Bytes read from a file at once; a block by itself would be a turn on the blocking pool.
const FILE_BUFFER: usize = 64 * 1024;

/// What was read to its end, and for whom.
pub(super) type Done = (Ipv4Addr, Fetched);

/// Looks names up and hands out readers.
pub(super) struct Files<T> {
    pub(super) table: Arc<T>,
    pub(super) slots: Arc<Semaphore>,
    pub(super) done: mpsc::Sender<Done>,
}

impl<T: Table> Handler for Files<T> {
    type Reader = Compat<Transfer>;
    type Writer = Compat<Sink>;

    async fn read_req_open(
        &mut self,
        client: &SocketAddr,
        path: &Path,
    ) -> Result<(Self::Reader, Option<u64>), packet::Error> {
        let name = path.to_str().and_then(Name::parse).ok_or(packet::Error::FileNotFound)?;
        let slot = Arc::clone(&self.slots)
            .try_acquire_owned()
            .map_err(|_| packet::Error::Msg("too many transfers, try again".to_owned()))?;
        let (content, what) = match name {
            Name::Loader(name) => (self.table.loader(name).map(Content::Memory), Fetched::Loader),
            Name::Blob { digest, part } => (self.table.blob(digest, part).await, Fetched::Blob(digest)),
        };
        let content = content.ok_or(packet::Error::FileNotFound)?;
        let length = content.length();
        let notice = match client.ip() {
            IpAddr::V4(from) => Some((from, what, self.done.clone())),
            IpAddr::V6(_) => None,
        };
        Ok((Transfer { source: content.into(), left: length, notice, _slot: slot }.compat(), Some(length)))
    }

    async fn write_req_open(
        &mut self,
        _client: &SocketAddr,
        _path: &Path,
        _size: Option<u64>,
    ) -> Result<Self::Writer, packet::Error> {
        // The type is only there because the trait wants one.
        let _never: fn(Sink) -> Self::Writer = TokioAsyncWriteCompatExt::compat_write;
        Err(packet::Error::PermissionDenied)
    }
}

enum Source {
    Memory(Bytes),
    File(BufReader<File>),
}

impl From<Content> for Source {
    fn from(content: Content) -> Self {
        match content {
            Content::Memory(bytes) => Source::Memory(bytes),
            Content::File(file, _) => Source::File(BufReader::with_capacity(FILE_BUFFER, file)),
        }
    }
}

/// The bytes of one transfer. Says so when the last one was read; a size probe reads one block and says nothing.
pub(super) struct Transfer {
    source: Source,
    left: u64,
    notice: Option<(Ipv4Addr, Fetched, mpsc::Sender<Done>)>,
    _slot: OwnedSemaphorePermit,
}

impl AsyncRead for Transfer {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        match &mut self.source {
            Source::Memory(bytes) => {
                let part = bytes.split_to(bytes.len().min(out.remaining()));
                out.put_slice(&part);
            }
            Source::File(file) => ready!(Pin::new(file).poll_read(cx, out))?,
        }
        let read = (out.filled().len() - before) as u64;
        self.left = self.left.saturating_sub(read);
        if self.left == 0
            && let Some((from, what, done)) = self.notice.take()
        {
            // A full queue loses a stage mark, never the transfer.
            let _ = done.try_send((from, what));
        }
        Poll::Ready(Ok(()))
    }
}
