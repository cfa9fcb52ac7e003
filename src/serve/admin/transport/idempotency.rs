//! Orders with an `Idempotency-Key` run once; a repeat returns the stored answer.

use crate::admin::{ApiState, error::Refused, transport::caller::Caller};
use axum::{
    body::{Body, to_bytes},
    extract::Request,
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE},
        request::Parts,
    },
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use meshd_api::{KEY_HEADER, REPLAYED_HEADER};
use meshd_central::KeyUse;
use meshd_model::fleet::{AuditContext, IdempotencyRecord, StoredResponse};
use meshd_types::{CorrelationId, Digest};

/// Maximum length of a key, in bytes.
const MAX_KEY: usize = 128;
/// Maximum size of a stored response, in bytes.
const MAX_STORED: usize = 64 * 1024;

/// Marks a replayed response.
#[derive(Clone, Copy)]
pub(crate) struct Replayed;

/// Executes an order, or replays the stored response of its key.
pub(crate) async fn execute_once(
    state: &ApiState,
    context: &AuditContext,
    parts: Parts,
    bytes: Bytes,
    next: Next,
) -> Response {
    let key = match key(&parts.headers) {
        Ok(Some(key)) => key.to_owned(),
        Ok(None) => return next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Err(refused) => return refused.into_response(),
    };
    let caller = parts
        .extensions
        .get::<Caller>()
        .map_or_else(|| context.principal.to_string(), Caller::identity);
    let slot = Digest::of_fields([caller.as_bytes(), key.as_bytes()]);
    let method = parts.method.as_str();
    let uri = parts.uri.to_string();
    let request = Digest::of_fields([method.as_bytes(), uri.as_bytes(), &bytes]);
    let _running = match state.central.admin.reserve_idempotency_key(slot, request).await {
        Ok(KeyUse::New(running)) => running,
        Ok(KeyUse::Repeated { record, is_running }) => return replay(request, record, is_running),
        Err(error) => return Refused::from(error).into_response(),
    };
    let response = next.run(Request::from_parts(parts, Body::from(bytes))).await;
    end(state, slot, request, context.correlation_id, response).await
}

fn key(headers: &HeaderMap) -> Result<Option<&str>, Refused> {
    let Some(value) = headers.get(KEY_HEADER) else { return Ok(None) };
    let fits = |text: &&str| (1..=MAX_KEY).contains(&text.len());
    let message = format!("an Idempotency-Key is 1 to {MAX_KEY} visible characters");
    let refused = || Refused::bad_request(message).with_hint("use a random one for each order");
    value.to_str().ok().filter(fits).map(Some).ok_or_else(refused)
}

fn replay(request: Digest, before: IdempotencyRecord, is_running: bool) -> Response {
    let refused = |code, message: &str, hint: &str| {
        Refused::new(StatusCode::CONFLICT, code, message).with_hint(hint).into_response()
    };
    if before.request != request {
        return refused(
            "key_reused",
            "the Idempotency-Key belongs to another order",
            "use a new one",
        );
    }
    let Some(StoredResponse { status, body }) = before.answer else {
        return if is_running {
            refused("in_progress", "this order is in progress", "retry later")
        } else {
            refused(
                "outcome_unknown",
                "meshd ended while it executed this order",
                "check the current state, then use a new key",
            )
        };
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let Some(body) = body else {
        return refused(
            "answer_not_kept",
            "this order was executed",
            "its response is too long, secret or too old to be stored",
        );
    };
    let mut response = (status, [(CONTENT_TYPE, "application/json")], body).into_response();
    response.headers_mut().insert(REPLAYED_HEADER, HeaderValue::from_static("true"));
    response.extensions_mut().insert(Replayed);
    response
}

/// Stores the response.
async fn end(
    state: &ApiState,
    slot: Digest,
    request: Digest,
    correlation: CorrelationId,
    response: Response,
) -> Response {
    let status = response.status().as_u16();
    let secret = response.headers().get(CACHE_CONTROL).is_some_and(|value| value == "no-store");
    let plain =
        response.headers().get(CONTENT_TYPE).is_some_and(|value| value == "application/json");
    let (stored, response) = match response.extensions().get::<Refused>() {
        Some(refused) => (Some(refused.to_json(correlation)), response),
        // A stream is passed through and not stored.
        None if !plain => (None, response),
        None => {
            let (parts, body) = response.into_parts();
            // The response body is in memory already.
            let Ok(bytes) = to_bytes(body, usize::MAX).await else {
                return Refused::internal("the response is incomplete").into_response();
            };
            let fits = !secret && bytes.len() <= MAX_STORED;
            let text = String::from_utf8(bytes.to_vec()).ok().filter(|_| fits);
            (text, Response::from_parts(parts, Body::from(bytes)))
        }
    };
    let answer = StoredResponse { status, body: stored };
    if let Err(error) = state.central.admin.store_answer(slot, request, answer).await {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "cannot store the response of an idempotency key"
        );
    }
    response
}
