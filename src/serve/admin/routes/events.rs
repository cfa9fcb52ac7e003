//! `/v1/events`: recorded and new events, one JSON object a line; `/v1/audit`: the audit log.

use crate::serve::admin::{
    Plane,
    error::Refused,
    query::{
        answer::{Asked, Encoding, Listing, parameters, selected},
        logs::{AUDIT, Direction, EVENTS, LogRequest, MAX_RECORDS},
        parameters::ParameterError,
    },
    transport::auth::Caller,
};
use axum::{
    Extension,
    body::Body,
    extract::State,
    http::{HeaderMap, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use meshd_api::{AuditView, EventView};
use meshd_central::Shared;
use meshd_config::suggest;
use meshd_model::fleet::{AuditSeq, Event, EventKind, EventSeq, Principal};
use meshd_store::{AuditFilter, EventFilter};
use std::{collections::VecDeque, convert::Infallible, time::Duration};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;

/// An empty line after so much silence tells whether the reader is still there.
const KEEPALIVE: Duration = Duration::from_secs(15);

pub(crate) async fn events(
    State(plane): State<Plane>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    asked: Asked,
) -> Result<Response, Refused> {
    let asked = parameters(asked, EVENTS.parameters)?;
    let (log, fields, text) = (LogRequest::read(&asked, &EVENTS)?, asked.fields(&EVENTS)?, asked.needle()?);
    let follow = asked.flag("follow")?;
    if follow && log.direction != Direction::Newest {
        let cause = "it does not go with `follow`; leave one of them out";
        return Err(ParameterError::invalid("sort", cause).into());
    }
    let central = plane.central;
    let node = asked.get("node").map(|node| central.nodes.resolve(node)).transpose()?;
    let kinds = kinds(asked.get("kind").unwrap_or_default())?;
    let text = text.map(|text| text.as_str().to_owned());
    let wanted = EventFilter { node, kinds, text, limit: MAX_RECORDS, ..EventFilter::default() };
    if !follow {
        return past(&central, log, wanted, fields, &headers).await;
    }
    // Subscribed before the record is read: no event falls between the two.
    let receiver = central.store().subscribe();
    let after = log.after.map(EventSeq);
    let past = read(&central, EventFilter { after, limit: log.limit, ..wanted.clone() }).await?;
    let last = past.last().map(|(seq, _)| *seq).or(after);
    let queue: VecDeque<Bytes> = past.iter().map(|(seq, event)| line(*seq, event, fields.as_deref())).collect();
    let tail = Tail { central, caller, receiver, wanted, fields, last, queue, shutdown: plane.shutdown };
    let body = Body::from_stream(futures_util::stream::unfold(tail, |mut tail| async move {
        tail.next().await.map(|bytes| (Ok::<_, Infallible>(bytes), tail))
    }));
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// Recorded events only.
async fn past(
    central: &Shared,
    log: LogRequest,
    wanted: EventFilter,
    fields: Option<Vec<&'static str>>,
    headers: &HeaderMap,
) -> Result<Response, Refused> {
    let (first, before) = log.range();
    let after = first.checked_sub(1).map(EventSeq);
    let (before, oldest) = (before.map(EventSeq), log.direction == Direction::Forward);
    let found = read(central, EventFilter { after, before, oldest, limit: log.records(), ..wanted }).await?;
    let (found, next) = log.cut(found.into_iter().map(|(seq, event)| (seq.0, event)).collect());
    let rows = found.iter().map(|(seq, event)| EventView::new(EventSeq(*seq), event)).collect();
    let next = next.map(|next| next.to_string());
    Listing { rows, fields, next, total: None, encoding: Encoding::Lines }.answer(headers)
}

/// Kinds of events by their words; a word that no event has is refused, because its stream would be empty for ever.
fn kinds(text: &str) -> Result<Vec<String>, Refused> {
    let words: Vec<String> =
        text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    match words.iter().find(|word| !EventKind::words().any(|known| known == *word)) {
        None => Ok(words),
        Some(word) => {
            let shown = meshd_config::reader::brief(word);
            let cause = format!("`{shown}` is no kind of event; {}", suggest(word, EventKind::words()));
            Err(ParameterError::invalid("kind", cause).into())
        }
    }
}

async fn read(central: &Shared, filter: EventFilter) -> Result<Vec<(EventSeq, Event)>, Refused> {
    let central = central.clone();
    let read = tokio::task::spawn_blocking(move || central.store().events(filter)).await;
    Ok(read.map_err(|_| Refused::bad_request("reading the events was interrupted; try again"))??)
}

fn line(seq: EventSeq, event: &Event, fields: Option<&[&'static str]>) -> Bytes {
    let view = EventView::new(seq, event);
    let line = match fields {
        None => serde_json::to_vec(&view),
        Some(fields) => selected(&[view], fields).and_then(|rows| serde_json::to_vec(&rows[0])),
    };
    let mut line = line.expect("an event is plain data");
    line.push(b'\n');
    line.into()
}

/// What is still to be written to one reader.
struct Tail {
    central: Shared,
    caller: Caller,
    receiver: Receiver<(EventSeq, Event)>,
    /// Which events are written.
    wanted: EventFilter,
    /// Fields of each event; `None` for all.
    fields: Option<Vec<&'static str>>,
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
            let received = tokio::select! {
                () = self.shutdown.cancelled() => return None,
                received = tokio::time::timeout(KEEPALIVE, self.receiver.recv()) => received,
            };
            match received {
                Err(_) => return Some(Bytes::from_static(b"\n")),
                Ok(Ok((seq, event))) => {
                    let new = self.last.is_none_or(|last| seq > last);
                    if new && self.wanted.takes(&event) {
                        self.last = Some(seq);
                        return Some(line(seq, &event, self.fields.as_deref()));
                    }
                }
                // A reader that is too slow for the memory of the channel catches up from the disk.
                Ok(Err(RecvError::Lagged(_))) => {
                    let filter = EventFilter { after: self.last, ..self.wanted.clone() };
                    let missed = read(&self.central, filter).await.ok()?;
                    self.last = missed.last().map(|(seq, _)| *seq).or(self.last);
                    let fields = self.fields.as_deref();
                    self.queue.extend(missed.iter().map(|(seq, event)| line(*seq, event, fields)));
                }
                Ok(Err(RecvError::Closed)) => return None,
            }
        }
    }
}

pub(crate) async fn audit(
    State(Plane { central, .. }): State<Plane>,
    headers: HeaderMap,
    asked: Asked,
) -> Result<Response, Refused> {
    let asked = parameters(asked, AUDIT.parameters)?;
    let (log, fields, text) = (LogRequest::read(&asked, &AUDIT)?, asked.fields(&AUDIT)?, asked.needle()?);
    // A node that was removed has its lines still, by ID.
    let by_name = |name: &str| name.parse().or_else(|_| central.nodes.resolve(name));
    let node = asked.get("node").map(by_name).transpose()?;
    let who: Option<Principal> = asked.parsed("actor")?;
    let (first, before) = log.range();
    let filter = AuditFilter {
        from: AuditSeq(first),
        node,
        who,
        correlation: None,
        limit: log.records(),
        before: before.map(AuditSeq),
        oldest: log.direction == Direction::Forward,
        text: text.map(|text| text.as_str().to_owned()),
    };
    let read = tokio::task::spawn_blocking(move || central.store().audit(&filter)).await;
    let lines = read.map_err(|_| Refused::internal("reading the audit log was interrupted"))??;
    let (lines, next) = log.cut(lines.into_iter().map(|(seq, audit)| (seq.0, audit)).collect());
    let rows = lines.into_iter().map(|(seq, audit)| AuditView { seq: AuditSeq(seq), audit }).collect();
    let next = next.map(|next| next.to_string());
    Listing { rows, fields, next, total: None, encoding: Encoding::Array }.answer(&headers)
}
