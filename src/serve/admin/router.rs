//! The routes of the admin API, version 1.

use super::{
    MAX_BODY, Plane, bulk, dhcp,
    error::Refused,
    lists,
    query::{logs, nodes::NODES, search},
    routes::*,
    table::{AnyObject, Array, Binary, Empty, JsonLines, Object, Routes, ServerSentEvents},
    transport::{auth::admitted, order::named},
};
use axum::{
    Router,
    extract::{DefaultBodyLimit, MatchedPath, Request},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use meshd_api::*;
use meshd_model::fleet::Verb;
use meshd_trust::Role;
use std::time::Duration;

/// How long an answer may take to begin.
const TIME_LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn router(plane: Plane) -> Router {
    let routes = stored_logs::routes(tasks::routes(slots::routes(vms::routes(boots(bulk::routes(
        node_lifecycle::routes(nodes_routes(Routes::default())),
    ))))));
    let routes = dhcp::routes(catalog::routes(profile_routes(site_routes(credentials(volumes::routes(
        consoles::routes(routes),
    ))))));
    routes
        .into_router()
        .fallback(async || Refused::not_found("there is no such route; is the command line as new as meshd?"))
        .method_not_allowed_fallback(async || {
            Refused::new(StatusCode::METHOD_NOT_ALLOWED, "bad_method", "not a verb of this route")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(in_time))
        .layer(middleware::from_fn_with_state(plane.clone(), admitted))
        .layer(middleware::from_fn_with_state(plane.clone(), named))
        .with_state(plane)
}

fn nodes_routes(routes: Routes) -> Routes {
    routes
        .get::<Array<NodeView>, _, _>("/nodes", NODES.parameters, Role::Viewer, "List nodes", lists::nodes)
        .get::<Object<SearchView>, _, _>(
            "/search",
            search::PARAMETERS,
            Role::Viewer,
            "Search nodes, VMs and tasks by ID, name, address, serial number or program",
            lists::search,
        )
        .get::<Object<OperationsView>, _, _>(
            "/operations",
            &[],
            Role::Viewer,
            "List unfinished operations: boots, reboots, drains, VMs, volumes, slots and tasks",
            lists::operations,
        )
        .get::<Object<NodeDetail>, _, _>("/nodes/{node}", &[], Role::Viewer, "Show a node", node)
        .get::<Object<TimelineView>, _, _>(
            "/nodes/{node}/timeline",
            &["session"],
            Role::Viewer,
            "Show the stages of a boot; the newest boot by default",
            timeline,
        )
        .post::<Object<Approve>, Object<NodeView>, _, _>(
            "/nodes/{node}/approve",
            Verb::Approve,
            "Approve a node",
            approve,
        )
        .post::<Empty, Object<NodeView>, _, _>(
            "/nodes/{node}/reboot",
            Verb::Reboot,
            "Reboot a node through its agent",
            reboot,
        )
        .post::<Empty, Object<NodeView>, _, _>(
            "/nodes/{node}/release",
            Verb::Release,
            "Release a quarantined node",
            release,
        )
}

fn boots(routes: Routes) -> Routes {
    routes
        .post::<Object<AssignProfile>, Object<NodeView>, _, _>(
            "/nodes/{node}/assign-profile",
            Verb::AssignProfile,
            "Assign a profile, effective at the next boot",
            orders::assign_profile,
        )
        .post::<Object<ChangeVars>, Object<NodeDetail>, _, _>(
            "/nodes/{node}/vars",
            Verb::Vars,
            "Set and remove variables of a node",
            orders::vars,
        )
        .post::<Object<ChangeLabels>, Object<NodeView>, _, _>(
            "/nodes/{node}/label",
            Verb::Label,
            "Set and remove labels of a node",
            orders::label,
        )
        .post::<Object<Rename>, Object<NodeView>, _, _>(
            "/nodes/{node}/rename",
            Verb::Rename,
            "Rename a node",
            orders::rename,
        )
        .post::<Object<BootOnce>, Object<NodeDetail>, _, _>(
            "/nodes/{node}/boot-once",
            Verb::BootOnce,
            "Set boot options for the next boot only",
            orders::boot_once,
        )
        .post::<Object<Pin>, Object<NodeDetail>, _, _>(
            "/nodes/{node}/pin",
            Verb::Pin,
            "Pin a node to a generation, regardless of its profile",
            generations::pin,
        )
        .get::<Array<GenerationView>, _, _>(
            "/nodes/{node}/history",
            &[],
            Role::Viewer,
            "List the generations of a node",
            generations::history,
        )
        .get::<Object<DiffView>, _, _>(
            "/nodes/{node}/diff",
            &[],
            Role::Viewer,
            "Compare the running generation with the next one",
            generations::diff,
        )
}

/// The site, its profiles, what happened in it, and who may.
fn site_routes(routes: Routes) -> Routes {
    routes
        .get::<Object<CallerView>, _, _>("/whoami", &[], Role::Viewer, "Show name and role of the caller", whoami)
        .get::<Object<StatusView>, _, _>("/status", &[], Role::Viewer, "Show the status of the central node", status)
        .post::<Empty, Object<ReloadView>, _, _>(
            "/reload",
            Verb::Reload,
            "Reload site, overlays and images; all or nothing",
            generations::reload,
        )
        .get::<JsonLines<EventView>, _, _>(
            "/events",
            logs::EVENTS.parameters,
            Role::Viewer,
            "List events, or follow them",
            events::events,
        )
        .get::<ServerSentEvents, _, _>(
            "/events/stream",
            events::STREAM_PARAMETERS,
            Role::Viewer,
            "Follow events as server-sent events; the header last-event-id resumes, the event `lag` says that some are lost",
            events::stream,
        )
        .get::<Array<AuditView>, _, _>(
            "/audit",
            logs::AUDIT.parameters,
            Role::Viewer,
            "List the audit log",
            events::audit,
        )
        .get::<Array<Finding>, _, _>(
            "/doctor",
            &[],
            Role::Viewer,
            "List problems that keep machines from booting",
            doctor,
        )
        .page("/metrics", "Metrics for Prometheus", metrics)
}

/// Profiles and their revisions.
fn profile_routes(routes: Routes) -> Routes {
    routes
        .get::<Array<ProfileView>, _, _>(
            "/profiles",
            &[],
            Role::Viewer,
            "List profiles with inherited values",
            profiles,
        )
        .get::<Array<RevisionView>, _, _>(
            "/profiles/{name}/history",
            &[],
            Role::Viewer,
            "List the revisions of a profile",
            generations::revisions,
        )
        .get::<Object<RevisionDiffView>, _, _>(
            "/profiles/{name}/diff",
            &["from", "to"],
            Role::Viewer,
            "Compare two revisions of a profile",
            generations::compare,
        )
        .post::<Object<Rollback>, Array<RevisionView>, _, _>(
            "/profiles/{name}/rollback",
            Verb::Rollback,
            "Roll a profile back to a revision, or return to the site file",
            generations::rollback,
        )
}

/// Who and what is let in: by tokens of this plane, by tokens of machines, by certificates. And all of it, sealed.
fn credentials(routes: Routes) -> Routes {
    routes
        .get::<Array<ApiTokenView>, _, _>("/api-tokens", &[], Role::Auditor, "List API tokens", tokens::list)
        .post::<Object<CreateApiToken>, Object<CreatedApiToken>, _, _>(
            "/api-tokens/create",
            Verb::ApiTokenCreate,
            "Create an API token; only this answer contains it",
            tokens::create,
        )
        .post::<Empty, Array<ApiTokenView>, _, _>(
            "/api-tokens/{name}/revoke",
            Verb::ApiTokenRevoke,
            "Revoke an API token at once",
            tokens::revoke,
        )
        .get::<Array<TokenView>, _, _>(
            "/tokens",
            &[],
            Role::Viewer,
            "List enrolment tokens of machines that are not netbooted",
            trust::tokens,
        )
        .post::<Object<CreateToken>, Object<CreatedToken>, _, _>(
            "/tokens",
            Verb::TokenCreate,
            "Create an enrolment token; only this answer contains it",
            trust::create_token,
        )
        .post::<Empty, Object<TokenView>, _, _>(
            "/tokens/{token}/revoke",
            Verb::TokenRevoke,
            "Revoke an enrolment token",
            trust::revoke_token,
        )
        .get::<Array<RootView>, _, _>(
            "/ca",
            &[],
            Role::Viewer,
            "List trusted roots of the certificate authority",
            trust::ca,
        )
        .post::<Object<RotateCa>, Array<RootView>, _, _>(
            "/ca/rotate",
            Verb::CaRotate,
            "Replace the root of the certificate authority; the old one stays trusted for a grace period",
            trust::rotate_ca,
        )
        .post::<Empty, Object<NodeDetail>, _, _>(
            "/nodes/{node}/revoke",
            Verb::CertificateRevoke,
            "Revoke the certificate of a node and end its link",
            trust::revoke_node,
        )
        .post::<AnyObject, Binary, _, _>(
            "/backup",
            Verb::Backup,
            "Create an encrypted backup of the site",
            backup::backup,
        )
}

async fn in_time(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("none".into(), |path| path.as_str().to_owned());
    let response = match tokio::time::timeout(TIME_LIMIT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let message = format!("took longer than {} s; look at the log of meshd", TIME_LIMIT.as_secs());
            Refused::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message).into_response()
        }
    };
    crate::serve::metrics::count_request("admin", route, &response);
    response
}
