//! Stream of events for one reader: recorded events first, then new events as they occur.

use super::{
    ApiState,
    error::Refused,
    query::{answer::selected, logs::MAX_RECORDS},
    transport::caller::Caller,
};
use axum::{
    body::Body,
    http::header::{CACHE_CONTROL, CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use meshd_api::EventView;
use meshd_central::Shared;
use meshd_model::fleet::{Event, EventSeq};
use meshd_store::EventFilter;
use serde_json::json;
use std::{collections::VecDeque, convert::Infallible, time::Duration};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;

/// Silence after which an empty line detects a reader that is gone.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Format of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFormat {
    /// One JSON object per line.
    Lines,
    /// Server-sent events (HTML, 9.2).
    ServerSent,
}

impl StreamFormat {
    fn media(self) -> &'static str {
        match self {
            StreamFormat::Lines => "application/x-ndjson",
            StreamFormat::ServerSent => "text/event-stream",
        }
    }

    fn record(self, seq: EventSeq, event: &Event, fields: Option<&[&'static str]>) -> Bytes {
        let view = EventView::new(seq, event);
        let text = match fields {
            None => serde_json::to_string(&view),
            Some(fields) => {
                selected(&[view], fields).and_then(|rows| serde_json::to_string(&rows[0]))
            }
        };
        let text = text.expect("an event is plain data");
        match self {
            StreamFormat::Lines => format!("{text}\n"),
            // JSON text contains no line break, so one `data` line is enough.
            StreamFormat::ServerSent => format!("id: {}\nevent: event\ndata: {text}\n\n", seq.0),
        }
        .into()
    }

    fn keepalive(self) -> Bytes {
        match self {
            StreamFormat::Lines => Bytes::from_static(b"\n"),
            StreamFormat::ServerSent => Bytes::from_static(b":\n\n"),
        }
    }
}

/// Reads recorded events.
pub(crate) async fn read(
    central: &Shared,
    filter: EventFilter,
) -> Result<Vec<(EventSeq, Event)>, Refused> {
    let central = central.clone();
    let read = tokio::task::spawn_blocking(move || central.env.events(filter)).await;
    Ok(read.map_err(|_| {
        Refused::bad_request("reading the events was interrupted").with_hint("retry")
    })??)
}

/// Pending events of one reader.
pub(crate) struct EventTail {
    central: Shared,
    caller: Caller,
    /// The subscription precedes the read of recorded events, so no event is lost between the two.
    receiver: Receiver<(EventSeq, Event)>,
    /// Selects the events of the stream.
    filter: EventFilter,
    /// Fields of each event; `None` for all.
    fields: Option<Vec<&'static str>>,
    format: StreamFormat,
    /// Number of the newest written event.
    last: Option<EventSeq>,
    queue: VecDeque<Bytes>,
    shutdown: CancellationToken,
}

impl EventTail {
    pub(crate) fn new(
        state: ApiState,
        caller: Caller,
        filter: EventFilter,
        fields: Option<Vec<&'static str>>,
        format: StreamFormat,
    ) -> Self {
        let ApiState { central, shutdown, .. } = state;
        let receiver = central.env.subscribe_to_events();
        let queue = VecDeque::new();
        EventTail { central, caller, receiver, filter, fields, format, last: None, queue, shutdown }
    }

    /// Begins with the newest `limit` events after an event number.
    pub(crate) async fn begin_with_newest(
        &mut self,
        after: Option<EventSeq>,
        limit: usize,
    ) -> Result<(), Refused> {
        let past = read(&self.central, EventFilter { after, limit, ..self.filter.clone() }).await?;
        self.last = past.last().map(|(seq, _)| *seq).or(after);
        self.queue(&past);
        Ok(())
    }

    /// Begins with all events after an event number, or with none if there is no number. If some of
    /// these events are no longer on record, the first message is `lag`: the reader must reload its
    /// view.
    pub(crate) async fn begin_after(&mut self, after: Option<EventSeq>) -> Result<(), Refused> {
        self.queue.push_back(self.format.keepalive());
        let Some(after) = after else { return Ok(()) };
        let edge = |oldest| EventFilter { oldest, limit: 1, ..EventFilter::default() };
        let first = read(&self.central, edge(true)).await?.first().map(|(seq, _)| seq.0);
        let newest = read(&self.central, edge(false)).await?.first().map_or(0, |(seq, _)| seq.0);
        let filter =
            EventFilter { after: Some(after), limit: MAX_RECORDS + 1, ..self.filter.clone() };
        let past = read(&self.central, filter).await?;
        let is_missing = first.is_some_and(|first| first > after.0.saturating_add(1));
        if is_missing || after.0 > newest || past.len() > MAX_RECORDS {
            let data = json!({ "after": after.0, "oldest": first, "newest": newest });
            self.queue.push_back(format!("id: {newest}\nevent: lag\ndata: {data}\n\n").into());
            self.last = Some(EventSeq(newest));
            return Ok(());
        }
        self.last = past.last().map(|(seq, _)| *seq).or(Some(after));
        self.queue(&past);
        Ok(())
    }

    fn queue(&mut self, events: &[(EventSeq, Event)]) {
        let format = self.format;
        let fields = self.fields.as_deref();
        self.queue.extend(events.iter().map(|(seq, event)| format.record(*seq, event, fields)));
    }

    /// Returns the response. The response ends with the reader's token, or with the program.
    pub(crate) fn response(self) -> Response {
        let headers = [(CONTENT_TYPE, self.format.media()), (CACHE_CONTROL, "no-store")];
        let body = Body::from_stream(futures_util::stream::unfold(self, |mut tail| async move {
            tail.next().await.map(|bytes| (Ok::<_, Infallible>(bytes), tail))
        }));
        (headers, body).into_response()
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            // A revoked token receives no further events.
            if !self.caller.still_may(&self.central) {
                return None;
            }
            if let Some(record) = self.queue.pop_front() {
                return Some(record);
            }
            let received = tokio::select! {
                () = self.shutdown.cancelled() => return None,
                received = tokio::time::timeout(KEEPALIVE, self.receiver.recv()) => received,
            };
            match received {
                Err(_) => return Some(self.format.keepalive()),
                Ok(Ok((seq, event))) => {
                    let new = self.last.is_none_or(|last| seq > last);
                    if new && self.filter.takes(&event) {
                        self.last = Some(seq);
                        return Some(self.format.record(seq, &event, self.fields.as_deref()));
                    }
                }
                // The reader is slower than the channel's buffer allows, and catches up from the
                // disk.
                Ok(Err(RecvError::Lagged(_))) => {
                    let filter = EventFilter { after: self.last, ..self.filter.clone() };
                    let missed = read(&self.central, filter).await.ok()?;
                    self.last = missed.last().map(|(seq, _)| *seq).or(self.last);
                    self.queue(&missed);
                }
                Ok(Err(RecvError::Closed)) => return None,
            }
        }
    }
}
