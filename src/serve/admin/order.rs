//! Each request has a name before any route sees it; an order has who gives it, which it is and why, too.

use super::{Plane, error::Refused};
use crate::fleet::{By, MAX_REASON, Verb, Who};
use crate::id::CorrelationId;
use axum::{
    Extension,
    extract::{FromRequestParts, Request, State},
    handler::Handler,
    http::{HeaderMap, HeaderValue, request::Parts},
    middleware::Next,
    response::Response,
    routing::{MethodRouter, post},
};
use tracing::Instrument as _;

/// Header of a request: why it is made, in UTF-8.
pub const REASON_HEADER: &str = "x-reason";
/// Header of every answer: what finds the request in log, events and audit log.
pub const CORRELATION_HEADER: &str = "x-correlation-id";

/// A route by which something is ordered.
pub(super) fn order<H, T>(verb: Verb, handler: H) -> MethodRouter<Plane>
where
    H: Handler<T, Plane>,
    T: 'static,
{
    post(handler).layer(Extension(verb))
}

/// Names the request, in its log lines and its answer.
pub(super) async fn named(State(plane): State<Plane>, mut request: Request, next: Next) -> Response {
    let correlation = plane.central.new_correlation();
    request.extensions_mut().insert(correlation);
    let span = tracing::info_span!("admin", correlation_id = %correlation);
    let answer = async {
        let mut response = next.run(request).await;
        match response.extensions_mut().remove::<Refused>() {
            Some(refused) => refused.answer(correlation),
            None => response,
        }
    };
    let mut response = answer.instrument(span).await;
    if let Ok(value) = HeaderValue::from_str(&correlation.to_string()) {
        response.headers_mut().insert(CORRELATION_HEADER, value);
    }
    response
}

impl FromRequestParts<Plane> for By {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &Plane) -> Result<Self, Refused> {
        let known = parts.extensions.get::<Who>().zip(parts.extensions.get::<Verb>());
        let Some(((who, verb), correlation)) = known.zip(parts.extensions.get::<CorrelationId>()) else {
            return Err(Refused::internal("this route does not say what it orders"));
        };
        let mut by = By::new(who.clone(), *verb, *correlation);
        by.reason = reason(&parts.headers)?;
        Ok(by)
    }
}

/// Why, as the request says.
fn reason(headers: &HeaderMap) -> Result<Option<String>, Refused> {
    let Some(value) = headers.get(REASON_HEADER) else { return Ok(None) };
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| Refused::bad_request("the reason is not UTF-8"))?;
    let text = text.trim();
    if text.chars().count() > MAX_REASON || text.chars().any(char::is_control) {
        return Err(Refused::bad_request(format!(
            "a reason is one line of at most {MAX_REASON} characters; write the rest elsewhere"
        )));
    }
    Ok((!text.is_empty()).then(|| text.to_owned()))
}
