//! Forwards the output of a task to the central node, one acknowledged piece at a time. Without acknowledgement the pipe fills and the task
//! blocks; nothing is dropped.

use super::JobEvent;
use meshd_proto::job::{MAX_PIECE, Output, Piece, Stream};
use meshd_types::JobId;
use std::{collections::BTreeMap, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    sync::{mpsc, watch},
    time::timeout,
};

/// A piece without acknowledgement is sent again after this time.
const AGAIN: Duration = Duration::from_secs(10);

/// Acknowledged offset of each stream, and a counter of welcomes: each welcome repeats unacknowledged pieces.
#[derive(Clone, Debug, Default)]
pub struct AckedOffsets {
    pub upto: BTreeMap<Stream, u64>,
    pub welcome: u64,
}

/// Forwards until the end of the pipe. Returns when everything is acknowledged.
pub async fn pump(
    job: JobId,
    stream: Stream,
    mut from: impl AsyncRead + Unpin,
    words: mpsc::Sender<JobEvent>,
    mut kept: watch::Receiver<AckedOffsets>,
) {
    let mut at = 0;
    let mut buffer = vec![0; MAX_PIECE];
    // An error ends the pipe like its end.
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let bytes = buffer.get(..length).unwrap_or_default().to_vec();
        let end = at + bytes.len() as u64;
        let piece = Output { job, stream, at, data: Piece::of(bytes) };
        loop {
            let welcome = kept.borrow_and_update().welcome;
            if words.send(JobEvent::Output(piece.clone())).await.is_err() {
                return;
            }
            let is_kept = |kept: &AckedOffsets| kept.upto.get(&stream).is_some_and(|upto| *upto >= end);
            let news = kept.wait_for(|kept| is_kept(kept) || kept.welcome != welcome);
            match timeout(AGAIN, news).await.map(|news| news.map(|kept| is_kept(&kept))) {
                Ok(Ok(true)) => break,
                Ok(Err(_)) => return,
                // The central node could not store it, or has just reconnected.
                Ok(Ok(false)) | Err(_) => {}
            }
        }
        at = end;
    }
}
