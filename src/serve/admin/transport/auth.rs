//! Authentication and roles. Write access to the socket grants the admin role. Each HTTPS request
//! contains a token, so revocation takes effect at once.

use crate::admin::{
    ApiState,
    error::Refused,
    transport::{caller::Caller, connection::AdminConnection},
};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, header::AUTHORIZATION},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use meshd_types::failpoint;
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Maximum number of unknown tokens from one address per [`WINDOW`]. Beyond it, unknown tokens and
/// requests without a token are refused until the window ends. Valid tokens still work, because
/// other users may share the address.
const MAX_FAILURES: u32 = 20;
/// Period in which failures count.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of tracked addresses. When the table is full, unknown tokens from all other
/// addresses are refused.
const MAX_ADDRESSES: usize = 4096;
/// Maximum length of a token that meshd checks, in bytes.
const MAX_TOKEN: usize = 256;

/// Client address of an HTTPS request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From(pub(crate) IpAddr);

/// Recent authentication failures by address.
#[derive(Clone, Default)]
pub(crate) struct Failures(Arc<Mutex<BTreeMap<IpAddr, (Instant, u32)>>>);

impl Failures {
    /// Returns true if an address has failed too often.
    fn are_too_many(&self, from: IpAddr, now: Instant) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (since, _)| now.duration_since(*since) < WINDOW);
        all.get(&from).map_or(all.len() >= MAX_ADDRESSES, |(_, count)| *count >= MAX_FAILURES)
    }

    fn count(&self, from: IpAddr, now: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(from).or_insert((now, 0)).1 += 1;
    }
}

/// Admits authenticated requests, and adds the caller to the request.
pub(crate) async fn authenticate(
    State(state): State<ApiState>,
    mut request: Request,
    next: Next,
) -> Response {
    if request.extensions().get::<Caller>().is_none() {
        match by_token(&state, &request) {
            Ok(caller) => drop(request.extensions_mut().insert(caller)),
            Err(refused) => return refused.into_response(),
        }
    }
    if let (Some(connection), Some(caller)) =
        (request.extensions().get::<AdminConnection>(), request.extensions().get::<Caller>())
    {
        connection.set_caller(caller);
    }
    next.run(request).await
}

fn by_token(state: &ApiState, request: &Request) -> Result<Caller, Refused> {
    let Some(From(from)) = request.extensions().get::<From>().copied() else {
        return Err(Refused::internal("the request has no client address"));
    };
    let now = Instant::now();
    let are_too_many = state.failures.are_too_many(from, now);
    if are_too_many && !failpoint::defends("ui-shared-address") {
        return Err(Refused::too_many(WINDOW));
    }
    let text = bearer(request.headers());
    // The lookup precedes the limit. Tokens have 256 random bits, so the limit only bounds the work
    // and log lines of guesses.
    if let Some(token) = text.and_then(|text| state.central.admin.api_token(text)) {
        return Ok(Caller::with(token));
    }
    if are_too_many {
        return Err(Refused::too_many(WINDOW));
    }
    if text.is_none() {
        return Err(Refused::unauthorized("the request has no token")
            .with_hint("send one as `Authorization: Bearer TOKEN`"));
    }
    state.failures.count(from, now);
    tracing::warn!(%from, "a request has an invalid token");
    Err(Refused::unauthorized("this token is invalid: it is unknown, revoked or expired")
        .with_hint("ask for another one"))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && token.len() <= MAX_TOKEN).then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_per_address_and_window_in_bounded_table() {
        let failures = Failures::default();
        let now = Instant::now();
        let at = |n: u32| IpAddr::from(n.to_be_bytes());
        for _ in 0..MAX_FAILURES {
            assert!(!failures.are_too_many(at(1), now));
            failures.count(at(1), now);
        }
        assert!(failures.are_too_many(at(1), now) && !failures.are_too_many(at(2), now));
        assert!(!failures.are_too_many(at(1), now + WINDOW), "it is over");
        for n in 0..u32::try_from(MAX_ADDRESSES).expect("small") {
            failures.count(at(n), now);
        }
        assert!(failures.are_too_many(at(u32::MAX), now));
    }

    #[test]
    fn authorization_header_accepts_only_bearer_tokens() {
        for (value, found) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc", Some("abc")),
            ("Basic abc", None),
            ("abc", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().expect("plain"))]);
            assert_eq!(bearer(&headers), found, "{value}");
        }
        let long = format!("Bearer {}", "x".repeat(MAX_TOKEN + 1));
        assert_eq!(
            bearer(&HeaderMap::from_iter([(AUTHORIZATION, long.parse().expect("plain"))])),
            None
        );
    }
}
