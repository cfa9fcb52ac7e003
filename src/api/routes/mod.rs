//! The routes of the admin API: path, role, audit verb, parameters, request and response of each.
//!
//! | module | content |
//! | --- | --- |
//! | `access` | API tokens, enrolment tokens, the certificate authority |
//! | `bulk` | orders for several nodes |
//! | `nodes` | nodes, their generations and their overlays |
//! | `openapi` | generates the OpenAPI document from all routes |
//! | `rollouts` | rollouts and bisections |
//! | `route` | types of routes, and their paths |
//! | `body_schema` | types of request and response bodies |
//! | `site` | status, time series, operations, profiles, overlays, images, DHCP, events, audit log, backup |
//! | `value_schema` | schemas of values that have several JSON types |
//! | `work` | VMs, slots, volumes, containers and tasks |
//!
//! The server binds a handler to each constant. A client builds paths from the constants. The name
//! of a constant in lower case is the operation ID in the OpenAPI document: renaming a constant
//! renames an operation.

mod access;
mod bulk;
mod nodes;
mod openapi;
mod rollouts;
mod route;
mod body_schema;
mod site;
mod value_schema;
mod work;

pub use access::*;
pub use body_schema::{
    AnyObject, Array, Binary, Empty, Gzip, Json, JsonLines, Nullable, Object, PlainText, Schemas,
    ServerSentEvents, Shape, UntypedJson,
};
pub use bulk::*;
pub use nodes::*;
pub use openapi::{MAX_QUERY_NODES, MAX_QUERY_VALUE, document, max_query_value};
pub use rollouts::*;
pub use route::{Get, GetPath, Post, PostPath, RouteSpec, UntypedPost};
pub use site::*;
pub(crate) use value_schema::task_user;
pub use work::*;

use route::Route;

/// Returns all routes.
fn all() -> impl Iterator<Item = &'static dyn Route> {
    [nodes::ROUTES, bulk::ROUTES, site::ROUTES, access::ROUTES, work::ROUTES, rollouts::ROUTES]
        .into_iter()
        .flatten()
        .copied()
}

/// Returns the specification of every route.
pub fn specs() -> impl Iterator<Item = RouteSpec> {
    all().map(Route::spec)
}

#[cfg(test)]
mod tests;
