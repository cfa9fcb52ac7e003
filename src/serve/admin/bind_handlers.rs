//! Binds handlers to the routes of `meshd_api::routes`, with their authorisation and audit log.

use crate::admin::{
    ApiState,
    transport::authorise_and_audit::{audited_post, authorised_get, recorded_get},
};
use axum::{Router, handler::Handler, routing::MethodRouter};
use meshd_api::routes::{Get, Post, RouteSpec};
use meshd_model::fleet::Verb;

/// Router under construction.
#[derive(Default)]
pub(crate) struct Binder {
    router: Router<ApiState>,
    /// Names of the routes that have a handler.
    pub(crate) bound: Vec<&'static str>,
}

impl Binder {
    pub(crate) fn get<R, H, T, const N: usize>(self, route: &Get<R, N>, handler: H) -> Self
    where
        H: Handler<T, ApiState>,
        T: 'static,
    {
        let spec = route.spec();
        self.bind(spec, authorised_get(spec, handler))
    }

    /// Binds a read that opens a session, whose refusals are recorded with this verb.
    pub(crate) fn session<R, H, T, const N: usize>(
        self,
        route: &Get<R, N>,
        verb: Verb,
        handler: H,
    ) -> Self
    where
        H: Handler<T, ApiState>,
        T: 'static,
    {
        let spec = route.spec();
        self.bind(spec, recorded_get(spec, verb, handler))
    }

    pub(crate) fn post<B, R, H, T, const N: usize>(self, route: &Post<B, R, N>, handler: H) -> Self
    where
        H: Handler<T, ApiState>,
        T: 'static,
    {
        let spec = route.spec();
        self.bind(spec, audited_post(spec, route.verb(), handler))
    }

    fn bind(mut self, spec: RouteSpec, handler: MethodRouter<ApiState>) -> Self {
        self.bound.push(spec.name);
        self.router = self.router.route(spec.path, handler);
        self
    }

    pub(crate) fn into_router(self) -> Router<ApiState> {
        self.router
    }
}
