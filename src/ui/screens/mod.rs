//! Pages of the web UI.
//!
//! | module | content |
//! | --- | --- |
//! | `access` | API tokens, enrolment tokens, roots of the certificate authority |
//! | `actions` | orders for nodes, and new VMs, containers and tasks |
//! | `catalog` | profiles, images, overlays |
//! | `changes` | operations, rollouts and bisections: changes of many nodes |
//! | `console` | the console of a VM, shells of nodes, guests and containers |
//! | `dhcp` | networks, leases, and DHCP servers other than meshd |
//! | `inbox` | machines that wait for approval |
//! | `log` | events and the audit log |
//! | `node` | one node, the log of its boots, the files of its overlay |
//! | `nodes` | the node list |
//! | `overview` | overview of the site, the findings of doctor, and the search |
//! | `sign_in` | the sign-in page |
//! | `work` | VMs, slots, containers, tasks and their output |

mod access;
mod actions;
mod catalog;
mod changes;
mod console;
mod dhcp;
mod inbox;
mod log;
mod node;
mod nodes;
mod overview;
pub(crate) mod sign_in;
mod work;

use crate::{
    PREFIX,
    client::{ApiClient, ApiError},
    html,
};
use axum::{
    Router,
    extract::FromRequestParts,
    http::{StatusCode, request::Parts},
    response::Response,
    routing::{get, post},
};

pub(crate) fn router() -> Router {
    let at = |path: &str| format!("{PREFIX}{path}");
    console::bind(Router::new())
        .route(PREFIX, get(overview::page))
        .route(&at("/"), get(overview::page))
        .route(&at("/operations"), get(changes::operations::page))
        .route(&at("/operations/{operation}"), get(changes::operations::one))
        .route(&at("/operations/{operation}/cancel"), post(changes::operations::cancel))
        .route(&at("/rollouts"), get(changes::rollouts::page))
        .route(&at("/rollouts/{rollout}"), get(changes::rollouts::one))
        .route(&at("/rollouts/{rollout}/{order}"), post(changes::rollouts::change_state))
        .route(&at("/search"), get(overview::search::page))
        .route(&at("/nodes"), get(nodes::page))
        .route(&at("/nodes/{node}"), get(node::page))
        .route(&at("/nodes/{node}/bmc"), get(node::bmc::page))
        .route(&at("/nodes/{node}/log"), get(node::log::page))
        .route(&at("/nodes/{node}/overlay"), get(node::overlay_files::page))
        .route(&at("/nodes/{node}/{verb}"), post(actions::one_node::run))
        .route(&at("/inbox"), get(inbox::page))
        .route(&at("/inbox/approve"), post(inbox::approval::run))
        .route(&at("/actions/preview"), post(actions::confirmation::preview))
        .route(&at("/actions/run"), post(actions::confirmation::run))
        .route(&at("/bisections"), get(changes::bisections::page))
        .route(&at("/bisections/{bisection}"), get(changes::bisections::one))
        .route(&at("/bisections/{bisection}/abort"), post(changes::bisections::abort))
        .route(&at("/vms"), get(work::vms::page).post(actions::create_vm::run))
        .route(&at("/vms/new"), get(actions::create_vm::page))
        .route(&at("/vms/{vm}"), get(work::vms::one))
        .route(&at("/vms/{vm}/{verb}"), post(work::vms::order))
        .route(&at("/containers"), get(work::containers::page).post(actions::run_container::run))
        // Below `/containers`, the page would be that of a container with its name.
        .route(&at("/run-container"), get(actions::run_container::page))
        .route(&at("/containers/{container}"), get(work::containers::one))
        .route(&at("/containers/{replica}/log"), get(work::containers::log::page))
        .route(
            &at("/containers/{container}/{verb}"),
            get(work::containers::orders::confirm).post(work::containers::orders::order),
        )
        .route(&at("/tasks"), get(work::tasks::page).post(actions::run_task::run))
        .route(&at("/tasks/new"), get(actions::run_task::page))
        .route(&at("/tasks/{task}"), get(work::tasks::one))
        .route(&at("/tasks/{task}/cancel"), post(work::tasks::cancel))
        .route(&at("/slots"), get(work::slots::page))
        .route(&at("/slots/{node}/{unit}/{verb}"), post(work::slots::order))
        .route(&at("/volumes"), get(work::volumes::page))
        .route(&at("/volumes/{volume}/remove"), post(work::volumes::remove))
        .route(&at("/profiles"), get(catalog::profiles::profiles))
        .route(&at("/profiles/{profile}"), get(catalog::profiles::profile))
        .route(&at("/profiles/{profile}/diff"), get(catalog::profiles::profile_diff))
        .route(&at("/profiles/{profile}/rollback"), post(catalog::profiles::rollback))
        .route(&at("/images"), get(catalog::images))
        .route(&at("/overlays"), get(catalog::overlays::overlays))
        .route(&at("/overlays/{overlay}"), get(catalog::overlays::overlay))
        .route(&at("/dhcp"), get(dhcp::page))
        .route(&at("/doctor"), get(overview::doctor::page))
        .route(&at("/events"), get(log::events))
        .route(&at("/audit"), get(log::audit))
        .route(&at("/access"), get(access::page))
        .route(&at("/access/api-tokens"), post(access::create_api_token))
        .route(&at("/access/api-tokens/{name}/revoke"), post(access::revoke_api_token))
        .route(&at("/access/tokens/{token}/revoke"), post(access::revoke_enrolment_token))
        .route(&at("/access/ca/rotate"), post(access::rotate_ca))
        .fallback(async |client: ApiClient| {
            let error =
                ApiError::new(StatusCode::NOT_FOUND, "not_found", "there is no such page", "");
            html::failure(Some(&client), &error)
        })
}

/// Result of a page handler. An error is a page, too.
type Answer = Result<Response, Response>;

impl<S: Sync> FromRequestParts<S> for ApiClient {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        parts.extensions.get::<ApiClient>().cloned().ok_or_else(|| {
            let error = ApiError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "the page has no session",
                "",
            );
            html::failure(None, &error)
        })
    }
}

impl ApiClient {
    /// Returns the page for an API error.
    fn failed(&self, error: &ApiError) -> Response {
        html::failure(Some(self), error)
    }
}
