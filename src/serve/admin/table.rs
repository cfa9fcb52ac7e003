//! The route table: path, role, request and response of each route. Router and OpenAPI document derive from it.

use crate::serve::admin::{
    Plane,
    transport::order::{needed, order, see},
};
use axum::{Router, handler::Handler, http::header::CONTENT_TYPE, routing::get};
use bytes::Bytes;
use meshd_model::fleet::Verb;
use meshd_trust::Role;
use serde_json::Value;
use std::{collections::BTreeMap, marker::PhantomData};
use utoipa::{PartialSchema, ToSchema};

/// The prefix of all routes but that of Prometheus.
pub(crate) const PREFIX: &str = "/v1";
/// Where the document is.
const DOCUMENT: &str = "/v1/openapi.json";

/// Schemas of types by name.
#[derive(Default)]
pub(crate) struct Schemas(pub(crate) BTreeMap<String, Value>);

impl Schemas {
    /// A reference to a type; its schema is added, and that of every type in it.
    pub(crate) fn of<T: ToSchema>(&mut self) -> Value {
        let (name, mut inner) = (T::name().into_owned(), Vec::new());
        T::schemas(&mut inner);
        let own = (name.clone(), <T as PartialSchema>::schema());
        for (name, schema) in inner.into_iter().chain([own]) {
            self.0.entry(name).or_insert_with(|| serde_json::to_value(schema).expect("a schema is plain data"));
        }
        serde_json::json!({ "$ref": format!("#/components/schemas/{name}") })
    }
}

/// What is sent or answered: its media type, and its schema where it has one.
pub(crate) trait Shape {
    const MEDIA: &'static str = "application/json";
    fn schema(schemas: &mut Schemas) -> Option<Value>;
}

/// One value.
pub(crate) struct One<T>(PhantomData<T>);
/// A list of values.
pub(crate) struct Many<T>(PhantomData<T>);
/// One value a line.
pub(crate) struct Lines<T>(PhantomData<T>);
/// An apkovl.
pub(crate) struct Archive;
/// Prometheus' text.
pub(crate) struct Page;
/// No body, or `null`.
pub(crate) struct Nothing;

impl<T: ToSchema> Shape for One<T> {
    fn schema(schemas: &mut Schemas) -> Option<Value> {
        Some(schemas.of::<T>())
    }
}

impl<T: ToSchema> Shape for Many<T> {
    fn schema(schemas: &mut Schemas) -> Option<Value> {
        Some(serde_json::json!({ "type": "array", "items": schemas.of::<T>() }))
    }
}

impl<T: ToSchema> Shape for Lines<T> {
    const MEDIA: &'static str = "application/x-ndjson";
    fn schema(schemas: &mut Schemas) -> Option<Value> {
        Some(schemas.of::<T>())
    }
}

impl Shape for Archive {
    const MEDIA: &'static str = "application/gzip";
    fn schema(_: &mut Schemas) -> Option<Value> {
        None
    }
}

/// A body of JSON whose type is not told: it holds a secret.
pub(crate) struct Anything;
/// A backup.
pub(crate) struct Sealed;

impl Shape for Anything {
    fn schema(_: &mut Schemas) -> Option<Value> {
        Some(serde_json::json!({ "type": "object" }))
    }
}

impl Shape for Sealed {
    const MEDIA: &'static str = "application/octet-stream";
    fn schema(_: &mut Schemas) -> Option<Value> {
        None
    }
}

impl Shape for Page {
    const MEDIA: &'static str = "text/plain";
    fn schema(_: &mut Schemas) -> Option<Value> {
        None
    }
}

impl Shape for Nothing {
    fn schema(_: &mut Schemas) -> Option<Value> {
        None
    }
}

/// One route as the document has it.
pub(crate) struct Listed {
    pub(crate) path: String,
    /// `None` for what is only seen.
    pub(crate) verb: Option<Verb>,
    pub(crate) needs: Role,
    pub(crate) what: &'static str,
    pub(crate) query: &'static [&'static str],
    pub(crate) body: Option<Value>,
    pub(crate) media: &'static str,
    pub(crate) answer: Option<Value>,
}

/// Routes in the making.
#[derive(Default)]
pub(crate) struct Routes {
    router: Router<Plane>,
    pub(crate) listed: Vec<Listed>,
    pub(crate) schemas: Schemas,
}

impl Routes {
    /// A route by which something is seen, with the parameters of its query.
    pub(crate) fn see<A: Shape, H, T>(
        mut self,
        path: &str,
        query: &'static [&'static str],
        needs: Role,
        what: &'static str,
        handler: H,
    ) -> Self
    where
        H: Handler<T, Plane>,
        T: 'static,
    {
        let path = format!("{PREFIX}{path}");
        self.router = self.router.route(&path, see(needs, handler));
        let answer = A::schema(&mut self.schemas);
        self.listed.push(Listed { path, verb: None, needs, what, query, body: None, media: A::MEDIA, answer });
        self
    }

    /// A route by which something is ordered.
    pub(crate) fn order<B: Shape, A: Shape, H, T>(
        mut self,
        path: &str,
        verb: Verb,
        what: &'static str,
        handler: H,
    ) -> Self
    where
        H: Handler<T, Plane>,
        T: 'static,
    {
        let path = format!("{PREFIX}{path}");
        self.router = self.router.route(&path, order(verb, handler));
        let (body, answer) = (B::schema(&mut self.schemas), A::schema(&mut self.schemas));
        let needs = needed(verb);
        self.listed.push(Listed { path, verb: Some(verb), needs, what, query: &[], body, media: A::MEDIA, answer });
        self
    }

    /// Prometheus asks outside of the version.
    pub(crate) fn page<H, T>(mut self, path: &str, what: &'static str, handler: H) -> Self
    where
        H: Handler<T, Plane>,
        T: 'static,
    {
        self.router = self.router.route(path, see(Role::Viewer, handler));
        let (path, media) = (path.to_owned(), Page::MEDIA);
        let needs = Role::Viewer;
        self.listed.push(Listed { path, verb: None, needs, what, query: &[], body: None, media, answer: None });
        self
    }

    /// The router, which answers with its own document, too.
    pub(crate) fn into_router(mut self) -> Router<Plane> {
        let what = "this document";
        let (path, needs, media) = (DOCUMENT.to_owned(), Role::Viewer, "application/json");
        self.listed.push(Listed { path, verb: None, needs, what, query: &[], body: None, media, answer: None });
        let document = Bytes::from(crate::serve::admin::openapi::document(&self.listed, &mut self.schemas).to_string());
        let answer = get(async move || ([(CONTENT_TYPE, "application/json")], document));
        self.router.route(DOCUMENT, answer)
    }
}
