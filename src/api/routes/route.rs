//! Types of routes. The type of a route determines its request, its response and the number of path
//! parameters.

use super::body_schema::{Json, Schemas, Shape, UntypedJson};
use crate::segment;
use meshd_model::fleet::Verb;
use meshd_trust::Role;
use serde::Serialize;
use serde_json::Value;
use std::{fmt::Display, marker::PhantomData};

/// The part of a route that does not depend on its type parameters.
#[derive(Clone, Copy, Debug)]
pub struct RouteSpec {
    /// Name of the constant that declares the route.
    pub name: &'static str,
    /// Path with parameters in braces.
    pub path: &'static str,
    /// Verb in the audit log; `None` for a read.
    pub verb: Option<Verb>,
    /// Minimum role of the caller.
    pub role: Role,
    /// Summary for the OpenAPI document.
    pub summary: &'static str,
    /// Names of the query parameters.
    pub query: &'static [&'static str],
}

/// A route with any request, response and number of path parameters.
pub(super) trait Route: Sync {
    fn spec(&self) -> RouteSpec;
    fn request(&self, schemas: &mut Schemas) -> Option<Value>;
    fn media(&self) -> &'static str;
    fn response(&self, schemas: &mut Schemas) -> Option<Value>;
}

/// A read with response `R` and `N` parameters in its path.
pub struct Get<R, const N: usize = 0> {
    spec: RouteSpec,
    types: PhantomData<fn() -> R>,
}

/// A change with request `B`, response `R` and `N` parameters in its path.
pub struct Post<B, R, const N: usize = 0> {
    spec: RouteSpec,
    verb: Verb,
    types: PhantomData<fn(B) -> R>,
}

impl<R, const N: usize> Get<R, N> {
    /// Creates a read route for the role viewer.
    pub(super) const fn new(path: &'static str, summary: &'static str) -> Self {
        let spec =
            RouteSpec { name: "", path, verb: None, role: Role::Viewer, summary, query: &[] };
        Get { spec: check_parameters(spec, N), types: PhantomData }
    }

    pub(super) const fn role(mut self, role: Role) -> Self {
        self.spec.role = role;
        self
    }

    pub(super) const fn query(mut self, names: &'static [&'static str]) -> Self {
        self.spec.query = names;
        self
    }

    pub(super) const fn with_name(mut self, name: &'static str) -> Self {
        self.spec.name = name;
        self
    }

    pub const fn spec(&self) -> RouteSpec {
        self.spec
    }

    /// Returns the path with these parameters, percent-encoded.
    pub fn path(&self, parameters: [&dyn Display; N]) -> GetPath<R> {
        GetPath {
            text: fill_path(self.spec.path, &parameters),
            query: self.spec.query,
            types: PhantomData,
        }
    }
}

impl<B, R, const N: usize> Post<B, R, N> {
    /// Creates a route for a change. The verb determines the role.
    pub(super) const fn new(path: &'static str, verb: Verb, summary: &'static str) -> Self {
        let spec = RouteSpec {
            name: "",
            path,
            verb: Some(verb),
            role: required_role(verb),
            summary,
            query: &[],
        };
        Post { spec: check_parameters(spec, N), verb, types: PhantomData }
    }

    pub(super) const fn with_name(mut self, name: &'static str) -> Self {
        self.spec.name = name;
        self
    }

    pub const fn spec(&self) -> RouteSpec {
        self.spec
    }

    pub const fn verb(&self) -> Verb {
        self.verb
    }

    /// Returns the path with these parameters, percent-encoded.
    pub fn path(&self, parameters: [&dyn Display; N]) -> PostPath<B, R> {
        PostPath { text: fill_path(self.spec.path, &parameters), types: PhantomData }
    }
}

/// Returns the role that a verb requires.
const fn required_role(verb: Verb) -> Role {
    match verb {
        Verb::TokenCreate
        | Verb::TokenRevoke
        | Verb::CertificateRevoke
        | Verb::CaRotate
        | Verb::ApiTokenCreate
        | Verb::ApiTokenRevoke
        | Verb::Backup => Role::Admin,
        _ => Role::Operator,
    }
}

/// Fails the build if the path and the type of a route have different numbers of parameters.
const fn check_parameters(spec: RouteSpec, parameters: usize) -> RouteSpec {
    let bytes = spec.path.as_bytes();
    let mut index = 0;
    let mut count = 0;
    while index < bytes.len() {
        if bytes[index] == b'{' {
            count += 1;
        }
        index += 1;
    }
    assert!(
        count == parameters,
        "the path has another number of parameters than the type of the route"
    );
    spec
}

fn fill_path(path: &str, parameters: &[&dyn Display]) -> String {
    let mut values = parameters.iter().map(|value| segment(&value.to_string()));
    let segments = path.split('/').map(|part| match part.starts_with('{') {
        true => values.next().expect("the type of a route counts its parameters"),
        false => part.to_owned(),
    });
    segments.collect::<Vec<_>>().join("/")
}

/// Path of a read, with its query.
#[derive(Debug)]
pub struct GetPath<R> {
    text: String,
    query: &'static [&'static str],
    types: PhantomData<fn() -> R>,
}

impl<R> GetPath<R> {
    /// Adds a query parameter of the route.
    pub fn with(mut self, name: &str, value: impl Display) -> Self {
        debug_assert!(self.query.contains(&name), "{} has no parameter `{name}`", self.text);
        let separator = if self.text.contains('?') { '&' } else { '?' };
        self.text += &format!("{separator}{name}={}", segment(&value.to_string()));
        self
    }

    /// Adds a query parameter if `value` is present.
    pub fn with_optional(self, name: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Adds a query parameter unless its value is empty.
    pub fn with_nonempty(self, name: &str, value: &str) -> Self {
        self.with_optional(name, Some(value).filter(|value| !value.is_empty()))
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// Path of a change.
#[derive(Debug)]
pub struct PostPath<B, R> {
    text: String,
    types: PhantomData<fn(B) -> R>,
}

/// A change without the types of its route: its path and its encoded request.
pub type UntypedPost = (PostPath<UntypedJson, UntypedJson>, Value);

impl<B, R> PostPath<B, R> {
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl<B: Json<Value: Serialize>, R> PostPath<B, R> {
    /// Drops the types of the route, so that changes of different routes fit into one `match`.
    pub fn with_body(self, body: &B::Value) -> UntypedPost {
        let body = serde_json::to_value(body).expect("a request is plain data");
        (PostPath { text: self.text, types: PhantomData }, body)
    }
}

impl<R: Shape, const N: usize> Route for Get<R, N> {
    fn spec(&self) -> RouteSpec {
        self.spec
    }

    fn request(&self, _: &mut Schemas) -> Option<Value> {
        None
    }

    fn media(&self) -> &'static str {
        R::MEDIA
    }

    fn response(&self, schemas: &mut Schemas) -> Option<Value> {
        R::schema(schemas)
    }
}

impl<B: Shape, R: Shape, const N: usize> Route for Post<B, R, N> {
    fn spec(&self) -> RouteSpec {
        self.spec
    }

    fn request(&self, schemas: &mut Schemas) -> Option<Value> {
        B::schema(schemas)
    }

    fn media(&self) -> &'static str {
        R::MEDIA
    }

    fn response(&self, schemas: &mut Schemas) -> Option<Value> {
        R::schema(schemas)
    }
}

/// Declares each route as a constant, and `ROUTES` as the list of all these constants.
macro_rules! routes {
    ($($name:ident: $type:ty = $route:expr;)*) => {
        $(pub const $name: $type = $route.with_name(stringify!($name));)*
        pub(super) const ROUTES: &[&dyn $crate::routes::route::Route] = &[$(&$name),*];
    };
}
pub(super) use routes;
