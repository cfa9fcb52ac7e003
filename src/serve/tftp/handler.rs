//! async-tftp asks here for what it shall send.

use super::table::{Name, Table};
use crate::serve::central::Fetched;
use async_tftp::{packet, server::Handler};
use bytes::Bytes;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, ReadBuf, Sink},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

/// Transfers at one time. Each has a socket and a window of blocks.
pub const MAX_TRANSFERS: usize = 512;

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
        let (bytes, what) = match name {
            Name::Loader(name) => (self.table.loader(name), Fetched::Loader),
            Name::Blob { digest, part } => (self.table.blob(digest, part), Fetched::Blob(digest)),
        };
        let bytes = bytes.ok_or(packet::Error::FileNotFound)?;
        let length = bytes.len() as u64;
        let notice = match client.ip() {
            IpAddr::V4(from) => Some((from, what, self.done.clone())),
            IpAddr::V6(_) => None,
        };
        Ok((Transfer { bytes, notice, _slot: slot }.compat(), Some(length)))
    }

    async fn write_req_open(
        &mut self,
        _client: &SocketAddr,
        _path: &Path,
        _size: Option<u64>,
    ) -> Result<Self::Writer, packet::Error> {
        Err(packet::Error::PermissionDenied)
    }
}

/// The bytes of one transfer. Says so when the last one was read; a size probe reads one block and says nothing.
pub(super) struct Transfer {
    bytes: Bytes,
    notice: Option<(Ipv4Addr, Fetched, mpsc::Sender<Done>)>,
    _slot: OwnedSemaphorePermit,
}

impl AsyncRead for Transfer {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let length = self.bytes.len().min(out.remaining());
        out.put_slice(&self.bytes.split_to(length));
        if self.bytes.is_empty()
            && let Some((from, what, done)) = self.notice.take()
        {
            // A full queue loses a stage mark, never the transfer.
            let _ = done.try_send((from, what));
        }
        Poll::Ready(Ok(()))
    }
}
