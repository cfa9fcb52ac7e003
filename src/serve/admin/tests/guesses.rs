//! Tests of guessed tokens.

use super::*;
use crate::admin::{router, transport::auth::From};
use axum::{Router, body::Body, http::Request as ApiRequest};
use meshd_trust::Role;
use std::net::IpAddr;
use tower::ServiceExt as _;

/// The API behind the HTTPS listener.
fn api(fixture: &Fixture) -> Router {
    router::router(fixture.api_state())
}

async fn status(api: &Router, from: [u8; 4], token: Option<&str>) -> u16 {
    let mut request = ApiRequest::get("/v1/whoami");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request =
        request.extension(From(IpAddr::from(from))).body(Body::empty()).expect("a request");
    api.clone().oneshot(request).await.expect("infallible").status().as_u16()
}

#[tokio::test]
async fn token_guesses_are_rate_limited_but_valid_tokens_are_not() {
    let fixture = Fixture::start().await;
    let context = fixture.central.env.own_audit_context(meshd_model::fleet::Verb::ApiTokenCreate);
    let made = fixture
        .central
        .admin
        .create_api_token("ada".parse().expect("a name"), Role::Viewer, None, &context)
        .await;
    let token = made.expect("made").0;
    let api = api(&fixture);
    let shared = [10, 78, 0, 2];
    let guess = |n: u32| ["meshd_", &format!("{n:064x}")].concat();
    assert_eq!(status(&api, shared, None).await, 401);
    for n in 0..20 {
        assert_eq!(status(&api, shared, Some(&guess(n))).await, 401, "{n}");
    }
    for n in 20..60 {
        assert_eq!(status(&api, shared, Some(&guess(n))).await, 429, "{n}");
    }
    assert_eq!(status(&api, shared, None).await, 429);
    assert_eq!(status(&api, [10, 78, 0, 3], Some(&guess(1))).await, 401, "another address");
    assert_eq!(
        status(&api, shared, Some(token.expose())).await,
        200,
        "who shares the address is not locked out"
    );
    assert_eq!(
        status(&api, shared, Some(&guess(60))).await,
        429,
        "a valid token does not end the limit"
    );
}
