//! Forwards a byte stream to the central node, one acknowledged piece at a time. Without acknowledgement the source waits; nothing is dropped.

use meshd_proto::task::{MAX_PIECE, Piece};
use std::{collections::BTreeMap, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    sync::{mpsc, watch},
    time::timeout,
};

/// A piece without acknowledgement is sent again after this time.
const REPEAT_AFTER: Duration = Duration::from_secs(10);

/// Acknowledged offset of each stream, and a counter of welcomes: each welcome repeats unacknowledged pieces.
#[derive(Clone, Debug)]
pub struct AckedOffsets<S> {
    upto: BTreeMap<S, u64>,
    welcomes: u64,
}

impl<S> Default for AckedOffsets<S> {
    fn default() -> Self {
        AckedOffsets { upto: BTreeMap::new(), welcomes: 0 }
    }
}

impl<S: Ord> AckedOffsets<S> {
    /// The central node stored a stream up to an offset.
    pub fn acknowledge(&mut self, stream: S, upto: u64) {
        let known = self.upto.entry(stream).or_default();
        *known = upto.max(*known);
    }

    /// The central node welcomed a new link.
    pub fn welcome(&mut self) {
        self.welcomes += 1;
    }

    fn has(&self, stream: &S, upto: u64) -> bool {
        self.upto.get(stream).is_some_and(|acked| *acked >= upto)
    }
}

/// Forwards until the end of `from`. Returns when everything is acknowledged, or nobody receives.
///
/// `message` makes the message of a piece from its offset in the stream, in bytes.
pub async fn forward<S: Copy + Ord, M>(
    stream: S,
    mut from: impl AsyncRead + Unpin,
    messages: mpsc::Sender<M>,
    mut acked: watch::Receiver<AckedOffsets<S>>,
    message: impl Fn(u64, Piece) -> M,
) {
    let mut at = 0;
    let mut buffer = vec![0; MAX_PIECE];
    // An error ends the stream like its end.
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let bytes = buffer.get(..length).unwrap_or_default().to_vec();
        let end = at + bytes.len() as u64;
        let piece = Piece::of(bytes);
        loop {
            let welcomes = acked.borrow_and_update().welcomes;
            if messages.send(message(at, piece.clone())).await.is_err() {
                return;
            }
            let changed = acked.wait_for(|acked| acked.has(&stream, end) || acked.welcomes != welcomes);
            match timeout(REPEAT_AFTER, changed).await.map(|changed| changed.map(|acked| acked.has(&stream, end))) {
                Ok(Ok(true)) => break,
                Ok(Err(_)) => return,
                // The central node could not store it, or has just reconnected.
                Ok(Ok(false)) | Err(_) => {}
            }
        }
        at = end;
    }
}
