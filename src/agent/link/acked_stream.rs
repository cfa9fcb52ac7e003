//! Forwards a byte stream to the central node, one acknowledged piece at a time. Backpressure: the
//! source waits for the acknowledgement.

use meshd_proto::task::{MAX_PIECE, Piece};
use std::{collections::BTreeMap, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    sync::{mpsc, watch},
    time::timeout,
};

/// A piece without acknowledgement is repeated after this time.
const REPEAT_AFTER: Duration = Duration::from_secs(10);

/// Acknowledged offset of each stream. Each welcome repeats unacknowledged pieces.
#[derive(Clone, Debug)]
pub struct AckedOffsets<S> {
    offsets: BTreeMap<S, u64>,
    links: u64,
}

impl<S> Default for AckedOffsets<S> {
    fn default() -> Self {
        AckedOffsets { offsets: BTreeMap::new(), links: 0 }
    }
}

impl<S: Ord> AckedOffsets<S> {
    /// Records that the central node stored a stream up to an offset.
    pub fn acknowledge(&mut self, stream: S, end: u64) {
        let acknowledged = self.offsets.entry(stream).or_default();
        *acknowledged = end.max(*acknowledged);
    }

    /// Begins a new link: unacknowledged pieces are sent again.
    pub fn rewind(&mut self) {
        self.links += 1;
    }

    fn includes(&self, stream: &S, end: u64) -> bool {
        self.offsets.get(stream).is_some_and(|acked| *acked >= end)
    }
}

/// Forwards until the end of `from`. Returns when every piece is acknowledged, or the receiver is
/// closed. `message` builds the message of a piece from its byte offset.
pub async fn forward<S: Copy + Ord, M>(
    stream: S,
    mut from: impl AsyncRead + Unpin,
    messages: mpsc::Sender<M>,
    mut acked: watch::Receiver<AckedOffsets<S>>,
    message: impl Fn(u64, Piece) -> M,
) {
    let mut offset = 0;
    let mut buffer = vec![0; MAX_PIECE];
    // A read error ends the stream.
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let end = offset + length as u64;
        let piece = Piece::from_bytes(buffer[..length].to_vec());
        loop {
            let links = acked.borrow_and_update().links;
            if messages.send(message(offset, piece.clone())).await.is_err() {
                return;
            }
            let changed =
                acked.wait_for(|acked| acked.includes(&stream, end) || acked.links != links);
            match timeout(REPEAT_AFTER, changed).await {
                Ok(Ok(acked)) if acked.includes(&stream, end) => break,
                Ok(Err(_)) => return,
                // Repeat: timeout, or a new link.
                Ok(Ok(_)) | Err(_) => {}
            }
        }
        offset = end;
    }
}
