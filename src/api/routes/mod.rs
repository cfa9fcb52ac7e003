//! The routes of the admin API: path, role, audit verb, parameters, request and response of each.
//!
//! | module | content |
//! | --- | --- |
//! | `access` | API tokens, enrolment tokens, the certificate authority |
//! | `bulk` | one order for several nodes |
//! | `nodes` | nodes, their generations and their overlays |
//! | `openapi` | generates the OpenAPI document from all routes |
//! | `route` | the types of routes, and their paths |
//! | `shape` | the types of request and response bodies |
//! | `site` | the site: status, operations, profiles, overlays, images, DHCP, events, audit log, backup |
//! | `work` | virtual machines, slots, volumes and tasks |
//!
//! The server binds a handler to each constant; a client builds paths from them. The name of a constant in lower case is the
//! operation ID in the OpenAPI document: renaming a constant renames an operation.

mod access;
mod bulk;
mod nodes;
mod openapi;
mod route;
mod shape;
mod site;
mod work;

pub use access::*;
pub use bulk::*;
pub use nodes::*;
pub use openapi::{MAX_QUERY_VALUE, document};
pub use route::{Get, GetPath, Post, PostPath, RouteSpec, UntypedPost};
pub use shape::{
    AnyObject, Array, Binary, Empty, Gzip, Json, JsonLines, Nullable, Object, PlainText, Schemas, ServerSentEvents,
    Shape, UntypedJson,
};
pub use site::*;
pub use work::*;

use route::Route;

/// Every route.
fn all() -> impl Iterator<Item = &'static dyn Route> {
    [nodes::ROUTES, bulk::ROUTES, site::ROUTES, access::ROUTES, work::ROUTES].into_iter().flatten().copied()
}

/// Returns the specification of every route.
pub fn specs() -> impl Iterator<Item = RouteSpec> {
    all().map(Route::spec)
}

#[cfg(test)]
mod tests;
