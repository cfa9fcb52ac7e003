//! `/v1/events`: recorded and new events; `/v1/events/stream`: new events as server-sent events;
//! `/v1/audit`: the audit log.

use crate::admin::{
    ApiState,
    error::Refused,
    event_tail::{EventTail, StreamFormat, read},
    query::{
        answer::{Encoding, Listing},
        logs::{AUDIT, Direction, EVENTS, LogRequest, MAX_RECORDS},
        parameters::{ParameterError, Parameters},
    },
    transport::caller::Caller,
};
use axum::{Extension, extract::State, http::HeaderMap, response::Response};
use meshd_api::{AuditView, EventView};
use meshd_central::Shared;
use meshd_config::suggest;
use meshd_model::fleet::{AuditSeq, EventKind, EventSeq, Principal};
use meshd_store::{AuditFilter, EventFilter};

/// Header with the number of the last event that a browser received (HTML, 9.2.4).
const LAST_EVENT_ID: &str = "last-event-id";

pub(crate) async fn events(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    query: Parameters,
) -> Result<Response, Refused> {
    let log = LogRequest::read(&query, &EVENTS)?;
    let fields = query.fields(&EVENTS)?;
    let follow = query.flag("follow")?;
    if follow && log.direction != Direction::Newest {
        let message = "it conflicts with `follow`";
        return Err(ParameterError::invalid("sort", message, "omit one of them").into());
    }
    let filter = event_filter(&state.central, &query)?;
    if !follow {
        return stored_events(&state.central, log, filter, fields, &headers).await;
    }
    let mut tail = EventTail::new(state, caller, filter, fields, StreamFormat::Lines);
    tail.begin_with_newest(log.after.map(EventSeq), log.limit).await?;
    Ok(tail.response())
}

/// Streams events as server-sent events, beginning after the last event that the reader received.
pub(crate) async fn stream(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    query: Parameters,
) -> Result<Response, Refused> {
    let fields = query.fields(&EVENTS)?;
    let filter = event_filter(&state.central, &query)?;
    let last = headers
        .get(LAST_EVENT_ID)
        .and_then(|value| value.to_str().ok())
        .filter(|text| !text.is_empty());
    let invalid = |_| {
        Refused::bad_request("the header last-event-id is not the number of an event")
            .with_hint("omit it")
    };
    let last: Option<u64> = last.map(str::parse).transpose().map_err(invalid)?;
    let after = last.or(query.number("after")?).map(EventSeq);
    let mut tail = EventTail::new(state, caller, filter, fields, StreamFormat::ServerSent);
    tail.begin_after(after).await?;
    Ok(tail.response())
}

/// Parses the event filter of a request.
fn event_filter(central: &Shared, query: &Parameters) -> Result<EventFilter, Refused> {
    let node = query.get("node").map(|node| central.nodes.resolve(node)).transpose()?;
    let kinds = kinds(query.get("kind").unwrap_or_default())?;
    let text = query.needle()?.map(|text| text.as_str().to_owned());
    Ok(EventFilter { node, kinds, text, limit: MAX_RECORDS, ..EventFilter::default() })
}

/// Returns recorded events only.
async fn stored_events(
    central: &Shared,
    log: LogRequest,
    filter: EventFilter,
    fields: Option<Vec<&'static str>>,
    headers: &HeaderMap,
) -> Result<Response, Refused> {
    let (first, before) = log.range();
    let after = first.checked_sub(1).map(EventSeq);
    let before = before.map(EventSeq);
    let oldest = log.direction == Direction::Forward;
    let found =
        read(central, EventFilter { after, before, oldest, limit: log.records(), ..filter })
            .await?;
    let (found, next) = log.cut(found.into_iter().map(|(seq, event)| (seq.0, event)).collect());
    let rows = found.iter().map(|(seq, event)| EventView::new(EventSeq(*seq), event)).collect();
    let next = next.map(|next| next.to_string());
    Listing { rows, fields, next, total: None, encoding: Encoding::Lines }.answer(headers)
}

/// Parses event kinds. Refuses an unknown kind, because its stream would stay empty for ever.
fn kinds(text: &str) -> Result<Vec<String>, Refused> {
    let words: Vec<String> =
        text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    match words.iter().find(|word| !EventKind::words().any(|known| known == *word)) {
        None => Ok(words),
        Some(word) => {
            let shown = meshd_config::reader::brief(word);
            let message = format!("unknown event kind `{shown}`");
            let hint = suggest(word, EventKind::words());
            Err(ParameterError::invalid("kind", message, hint).into())
        }
    }
}

pub(crate) async fn audit(
    State(central): State<Shared>,
    headers: HeaderMap,
    query: Parameters,
) -> Result<Response, Refused> {
    let log = LogRequest::read(&query, &AUDIT)?;
    let fields = query.fields(&AUDIT)?;
    let text = query.needle()?;
    // A removed node keeps its audit lines, by node ID.
    let by_name = |name: &str| name.parse().or_else(|_| central.nodes.resolve(name));
    let node = query.get("node").map(by_name).transpose()?;
    let principal: Option<Principal> = query.parsed("actor")?;
    let (first, before) = log.range();
    let filter = AuditFilter {
        from: AuditSeq(first),
        node,
        principal,
        correlation: None,
        limit: log.records(),
        before: before.map(AuditSeq),
        oldest: log.direction == Direction::Forward,
        text: text.map(|text| text.as_str().to_owned()),
    };
    let read = tokio::task::spawn_blocking(move || central.env.audit_lines(&filter)).await;
    let lines = read.map_err(|_| Refused::internal("reading the audit log was interrupted"))??;
    let (lines, next) = log.cut(lines.into_iter().map(|(seq, audit)| (seq.0, audit)).collect());
    let rows =
        lines.into_iter().map(|(seq, audit)| AuditView { seq: AuditSeq(seq), audit }).collect();
    let next = next.map(|next| next.to_string());
    Listing { rows, fields, next, total: None, encoding: Encoding::Array }.answer(&headers)
}
