//! `/v1/events`: recorded and new events, one JSON object a line.

use crate::serve::{
    admin::{Plane, error::Refused, transport::auth::Caller, view::EventView},
    central::Shared,
};
use axum::{
    Extension,
    body::Body,
    extract::{Query, State, rejection::QueryRejection},
    http::header::CONTENT_TYPE,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use meshd_config::suggest;
use meshd_model::fleet::{Event, EventKind, EventSeq};
use meshd_store::EventFilter;
use serde::Deserialize;
use std::{collections::VecDeque, convert::Infallible, time::Duration};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;

/// Events that are answered when nobody says how many.
const DEFAULT_LIMIT: usize = 100;
/// Most events of one answer.
const MAX_LIMIT: usize = 10_000;
/// An empty line after so much silence tells whether the reader is still there.
const KEEPALIVE: Duration = Duration::from_secs(15);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    #[serde(default)]
    follow: bool,
    after: Option<u64>,
    node: Option<String>,
    /// Words with commas between them.
    kind: Option<String>,
    limit: Option<usize>,
}

pub(crate) async fn events(
    State(plane): State<Plane>,
    Extension(caller): Extension<Caller>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(wanted) = wanted.map_err(|error| Refused::bad_request(error.body_text()))?;
    let central = plane.central;
    let node = wanted.node.as_deref().map(|node| central.nodes.resolve(node)).transpose()?;
    let kinds = kinds(wanted.kind.as_deref().unwrap_or_default())?;
    let limit = wanted.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let after = wanted.after.map(EventSeq);
    // Subscribed before the record is read: no event falls between the two.
    let receiver = wanted.follow.then(|| central.store().subscribe());
    let past = read(&central, EventFilter { after, node, kinds: kinds.clone(), limit }).await?;
    let last = past.last().map(|(seq, _)| *seq).or(after);
    let queue: VecDeque<Bytes> = past.iter().map(|(seq, event)| line(*seq, event)).collect();
    let wanted = EventFilter { after: None, node, kinds, limit: MAX_LIMIT };
    let tail = Tail { central, caller, receiver, wanted, last, queue, shutdown: plane.shutdown };
    let body = Body::from_stream(futures_util::stream::unfold(tail, |mut tail| async move {
        tail.next().await.map(|bytes| (Ok::<_, Infallible>(bytes), tail))
    }));
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// Kinds of events by their words; a word that no event has is refused, because its stream would be empty for ever.
fn kinds(text: &str) -> Result<Vec<String>, Refused> {
    let words: Vec<String> =
        text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    match words.iter().find(|word| !EventKind::words().any(|known| known == *word)) {
        None => Ok(words),
        Some(word) => {
            let shown = meshd_config::reader::brief(word);
            Err(Refused::bad_request(format!("`{shown}` is no kind of event; {}", suggest(word, EventKind::words()))))
        }
    }
}

async fn read(central: &Shared, filter: EventFilter) -> Result<Vec<(EventSeq, Event)>, Refused> {
    let central = central.clone();
    let read = tokio::task::spawn_blocking(move || central.store().events(filter)).await;
    Ok(read.map_err(|_| Refused::bad_request("reading the events was interrupted; try again"))??)
}

fn line(seq: EventSeq, event: &Event) -> Bytes {
    let mut line = serde_json::to_vec(&EventView::new(seq, event)).expect("an event is plain data");
    line.push(b'\n');
    line.into()
}

/// What is still to be written to one reader.
struct Tail {
    central: Shared,
    caller: Caller,
    /// `None` when the reader wants the past alone.
    receiver: Option<Receiver<(EventSeq, Event)>>,
    /// Which events are written.
    wanted: EventFilter,
    /// The newest event that was written.
    last: Option<EventSeq>,
    queue: VecDeque<Bytes>,
    shutdown: CancellationToken,
}

impl Tail {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            // A token that was revoked sees nothing more.
            if !self.caller.still_may(&self.central) {
                return None;
            }
            if let Some(line) = self.queue.pop_front() {
                return Some(line);
            }
            let receiver = self.receiver.as_mut()?;
            let received = tokio::select! {
                () = self.shutdown.cancelled() => return None,
                received = tokio::time::timeout(KEEPALIVE, receiver.recv()) => received,
            };
            match received {
                Err(_) => return Some(Bytes::from_static(b"\n")),
                Ok(Ok((seq, event))) => {
                    let new = self.last.is_none_or(|last| seq > last);
                    if new && self.wanted.takes(&event) {
                        self.last = Some(seq);
                        return Some(line(seq, &event));
                    }
                }
                // A reader that is too slow for the memory of the channel catches up from the disk.
                Ok(Err(RecvError::Lagged(_))) => {
                    let filter = EventFilter { after: self.last, ..self.wanted.clone() };
                    let missed = read(&self.central, filter).await.ok()?;
                    self.last = missed.last().map(|(seq, _)| *seq).or(self.last);
                    self.queue.extend(missed.iter().map(|(seq, event)| line(*seq, event)));
                }
                Ok(Err(RecvError::Closed)) => return None,
            }
        }
    }
}
