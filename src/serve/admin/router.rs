//! The routes of the admin API, version 1.

use super::{
    MAX_BODY, Plane, bulk,
    error::Refused,
    lists,
    query::{logs, nodes::NODES, search},
    routes::*,
    table::{Anything, Archive, Lines, Many, Nothing, One, Routes, Sealed},
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
    let routes = stored_logs::routes(tasks::routes(slots::routes(vms::routes(boots(bulk::routes(life::routes(
        nodes_routes(Routes::default()),
    )))))));
    let routes = site_routes(credentials(volumes::routes(consoles::routes(routes))));
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
        .see::<Many<NodeView>, _, _>("/nodes", NODES.parameters, Role::Viewer, "all nodes", lists::nodes)
        .see::<One<SearchView>, _, _>(
            "/search",
            search::PARAMETERS,
            Role::Viewer,
            "nodes, virtual machines and tasks that have a text in their ID, name, address, serial number or program",
            lists::search,
        )
        .see::<One<NodeDetail>, _, _>("/nodes/{node}", &[], Role::Viewer, "everything of a node", node)
        .see::<One<TimelineView>, _, _>(
            "/nodes/{node}/timeline",
            &["session"],
            Role::Viewer,
            "one boot stage by stage, the newest unless another is named",
            timeline,
        )
        .order::<One<Approve>, One<NodeView>, _, _>("/nodes/{node}/approve", Verb::Approve, "let a node in", approve)
        .order::<Nothing, One<NodeView>, _, _>(
            "/nodes/{node}/reboot",
            Verb::Reboot,
            "reboot a node by its link",
            reboot,
        )
        .order::<Nothing, One<NodeView>, _, _>(
            "/nodes/{node}/release",
            Verb::Release,
            "let a quarantined node boot again",
            release,
        )
}

fn boots(routes: Routes) -> Routes {
    routes
        .order::<One<AssignProfile>, One<NodeView>, _, _>(
            "/nodes/{node}/assign-profile",
            Verb::AssignProfile,
            "assign a profile, effective at the next boot",
            orders::assign_profile,
        )
        .order::<One<ChangeVars>, One<NodeDetail>, _, _>(
            "/nodes/{node}/vars",
            Verb::Vars,
            "set and remove variables of a node",
            orders::vars,
        )
        .order::<One<ChangeLabels>, One<NodeView>, _, _>(
            "/nodes/{node}/label",
            Verb::Label,
            "set and remove labels of a node",
            orders::label,
        )
        .order::<One<Rename>, One<NodeView>, _, _>(
            "/nodes/{node}/rename",
            Verb::Rename,
            "give a node another name",
            orders::rename,
        )
        .order::<One<BootOnce>, One<NodeDetail>, _, _>(
            "/nodes/{node}/boot-once",
            Verb::BootOnce,
            "order something for the next boot only",
            orders::boot_once,
        )
        .order::<One<Pin>, One<NodeDetail>, _, _>(
            "/nodes/{node}/pin",
            Verb::Pin,
            "boot one generation, whatever becomes of the profile",
            generations::pin,
        )
        .see::<Many<GenerationView>, _, _>(
            "/nodes/{node}/history",
            &[],
            Role::Viewer,
            "generations that a node was given",
            generations::history,
        )
        .see::<One<DiffView>, _, _>(
            "/nodes/{node}/diff",
            &[],
            Role::Viewer,
            "what it runs against what it would boot",
            generations::diff,
        )
        .see::<Archive, _, _>(
            "/overlay/{node}",
            &["profile"],
            Role::Operator,
            "the public part of what a node would boot now, or would boot with another profile",
            catalog::overlay,
        )
}

/// The site, its profiles, what happened in it, and who may.
fn site_routes(routes: Routes) -> Routes {
    routes
        .see::<One<CallerView>, _, _>("/whoami", &[], Role::Viewer, "who asks, and with which role", whoami)
        .see::<One<StatusView>, _, _>("/status", &[], Role::Viewer, "the central node at a glance", status)
        .see::<Many<ProfileView>, _, _>("/profiles", &[], Role::Viewer, "profiles with all that they inherit", profiles)
        .see::<Many<ImageView>, _, _>("/images", &[], Role::Viewer, "images and their versions", catalog::images)
        .see::<Many<OverlayView>, _, _>("/overlays", &[], Role::Viewer, "overlays of the site", catalog::overlays)
        .see::<Many<RevisionView>, _, _>(
            "/profiles/{name}/history",
            &[],
            Role::Viewer,
            "what a profile was",
            generations::revisions,
        )
        .order::<One<Rollback>, Many<RevisionView>, _, _>(
            "/profiles/{name}/rollback",
            Verb::Rollback,
            "nodes of a profile boot what it was, or what it is again",
            generations::rollback,
        )
        .order::<Nothing, One<ReloadView>, _, _>(
            "/reload",
            Verb::Reload,
            "read site, overlays and images anew, as one or not at all",
            generations::reload,
        )
        .see::<Lines<EventView>, _, _>(
            "/events",
            logs::EVENTS.parameters,
            Role::Viewer,
            "what happened, and what happens from now on",
            events::events,
        )
        .see::<Many<AuditView>, _, _>(
            "/audit",
            logs::AUDIT.parameters,
            Role::Viewer,
            "who ordered what, and what came of it",
            events::audit,
        )
        .see::<Many<Finding>, _, _>("/doctor", &[], Role::Viewer, "problems that keep machines from booting", doctor)
        .page("/metrics", "for Prometheus", metrics)
}

/// Who and what is let in: by tokens of this plane, by tokens of machines, by certificates. And all of it, sealed.
fn credentials(routes: Routes) -> Routes {
    routes
        .see::<Many<ApiTokenView>, _, _>("/api-tokens", &[], Role::Admin, "tokens of this plane", tokens::list)
        .order::<One<CreateApiToken>, One<CreatedApiToken>, _, _>(
            "/api-tokens/create",
            Verb::ApiTokenCreate,
            "make a token; it is shown this once",
            tokens::create,
        )
        .order::<Nothing, Many<ApiTokenView>, _, _>(
            "/api-tokens/{name}/revoke",
            Verb::ApiTokenRevoke,
            "take a token away, at once",
            tokens::revoke,
        )
        .see::<Many<TokenView>, _, _>(
            "/tokens",
            &[],
            Role::Viewer,
            "tokens of machines that are not netbooted",
            trust::tokens,
        )
        .order::<One<CreateToken>, One<CreatedToken>, _, _>(
            "/tokens",
            Verb::TokenCreate,
            "make a token for a machine; it is shown this once",
            trust::create_token,
        )
        .order::<Nothing, One<TokenView>, _, _>(
            "/tokens/{token}/revoke",
            Verb::TokenRevoke,
            "take a machine's token away",
            trust::revoke_token,
        )
        .see::<Many<RootView>, _, _>("/ca", &[], Role::Viewer, "roots that are trusted", trust::ca)
        .order::<One<RotateCa>, Many<RootView>, _, _>(
            "/ca/rotate",
            Verb::CaRotate,
            "a new root; the old one is trusted for a while",
            trust::rotate_ca,
        )
        .order::<Nothing, One<NodeDetail>, _, _>(
            "/nodes/{node}/revoke",
            Verb::CertificateRevoke,
            "end a node's link and its credentials",
            trust::revoke_node,
        )
        .order::<Anything, Sealed, _, _>(
            "/backup",
            Verb::Backup,
            "everything that the rack depends on, sealed",
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
