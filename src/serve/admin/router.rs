//! Builds the router: binds each route of `meshd_api::routes` to its handler, in middleware.

use super::{
    ApiState, MAX_IMPORT,
    bind_handlers::Binder,
    error::Refused,
    routes::{
        backup, catalog, dhcp, events, generations, nodes, operations, rollouts, site, tasks,
        tokens, trust, vms,
    },
    transport::{auth::authenticate, authorise_and_audit::with_correlation_id},
};
use axum::{
    Router,
    extract::{DefaultBodyLimit, MatchedPath, Request},
    http::{StatusCode, header::CONTENT_TYPE},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use meshd_api::routes as api;
use std::time::Duration;

/// Timeout for the start of a response: longer than every wait of a handler, so that the handler's
/// own error states what did not answer. The command line waits 40 s.
const TIME_LIMIT: Duration = Duration::from_secs(35);

pub(crate) fn router(state: ApiState) -> Router {
    bound()
        .into_router()
        .fallback(async || {
            Refused::not_found("there is no such route")
                .with_hint("use a command line of meshd's version")
        })
        .method_not_allowed_fallback(async || {
            Refused::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "bad_method",
                "the route does not support this method",
            )
        })
        // Orders read their body before, each with the limit of its verb.
        .layer(DefaultBodyLimit::max(MAX_IMPORT))
        .layer(middleware::from_fn(with_time_limit))
        .layer(middleware::from_fn_with_state(state.clone(), authenticate))
        .layer(middleware::from_fn_with_state(state.clone(), with_correlation_id))
        .with_state(state)
}

/// Binds a handler to each route of the API.
pub(crate) fn bound() -> Binder {
    let groups = [
        nodes::bind,
        operations::bind,
        rollouts::bind,
        bind_site,
        bind_access,
        bind_events,
        catalog::bind,
        dhcp::bind,
        vms::bind,
        vms::consoles::bind,
        vms::guest_shell::bind,
        vms::volumes::bind,
        vms::slots::bind,
        tasks::bind,
        vms::containers::bind,
    ];
    groups.into_iter().fold(Binder::default(), |binder, group| group(binder))
}

fn bind_site(binder: Binder) -> Binder {
    let document = Bytes::from(api::document().to_string());
    let document = async move || ([(CONTENT_TYPE, "application/json")], document);
    binder
        .get(&api::GET_CALLER, site::whoami)
        .get(&api::GET_STATUS, site::status)
        .get(&api::LIST_FINDINGS, site::findings)
        .get(&api::SEARCH, site::search)
        .get(&api::LIST_ACTIVITIES, site::activities)
        .get(&api::LIST_SERIES, site::list_series)
        .get(&api::GET_SERIES, site::series)
        .get(&api::GET_OPENAPI_DOCUMENT, document)
        .get(&api::GET_METRICS, site::metrics)
        .get(&api::LIST_PROFILES, site::profiles)
        .get(&api::LIST_PROFILE_REVISIONS, generations::revisions)
        .get(&api::COMPARE_PROFILE_REVISIONS, generations::compare)
        .post(&api::ROLL_BACK_PROFILE, generations::rollback)
        .post(&api::RELOAD_SITE, generations::reload)
}

fn bind_events(binder: Binder) -> Binder {
    binder
        .get(&api::LIST_EVENTS, events::events)
        .get(&api::STREAM_EVENTS, events::stream)
        .get(&api::LIST_AUDIT_RECORDS, events::audit)
}

fn bind_access(binder: Binder) -> Binder {
    binder
        .get(&api::LIST_API_TOKENS, tokens::list)
        .post(&api::CREATE_API_TOKEN, tokens::create)
        .post(&api::REVOKE_API_TOKEN, tokens::revoke)
        .get(&api::LIST_TOKENS, trust::tokens)
        .post(&api::CREATE_TOKEN, trust::create_token)
        .post(&api::REVOKE_TOKEN, trust::revoke_token)
        .get(&api::LIST_ROOTS, trust::ca)
        .post(&api::ROTATE_ROOT, trust::rotate_ca)
        .post(&api::REVOKE_NODE_CERTIFICATE, trust::revoke_node)
        .post(&api::CREATE_BACKUP, backup::backup)
}

async fn with_time_limit(request: Request, next: Next) -> Response {
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("none".into(), |path| path.as_str().to_owned());
    let response = match tokio::time::timeout(TIME_LIMIT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let message = format!("took longer than {} s", TIME_LIMIT.as_secs());
            let refused = Refused::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message);
            refused.with_hint("see the log of meshd").into_response()
        }
    };
    crate::metrics::count_request("admin", route, &response);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_proto::NodeAction;

    #[test]
    fn time_limit_is_longer_than_the_wait_for_a_node() {
        assert!(TIME_LIMIT > NodeAction::Reboot.window(), "its error would never be seen");
    }
}
