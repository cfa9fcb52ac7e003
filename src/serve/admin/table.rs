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

/// A request or response body: media type, and schema if it has one.
pub(crate) trait Shape {
    const MEDIA: &'static str = "application/json";
    fn schema(schemas: &mut Schemas) -> Option<Value>;
}

/// A JSON object.
pub(crate) struct Object<T>(PhantomData<T>);
/// A JSON array.
pub(crate) struct Array<T>(PhantomData<T>);
/// Newline-delimited JSON.
pub(crate) struct JsonLines<T>(PhantomData<T>);
/// A gzip-compressed tar archive, such as an apkovl.
pub(crate) struct Gzip;
/// Server-sent events (HTML, 9.2).
pub(crate) struct ServerSentEvents;

impl Shape for ServerSentEvents {
    const MEDIA: &'static str = "text/event-stream";
    fn schema(_: &mut Schemas) -> Option<Value> {
        None
    }
}

/// The text format of Prometheus.
pub(crate) struct PlainText;
/// No body, or `null`.
pub(crate) struct Empty;

impl<T: ToSchema> Shape for Object<T> {
    fn schema(schemas: &mut Schemas) -> Option<Value> {
        Some(schemas.of::<T>())
    }
}

impl<T: ToSchema> Shape for Array<T> {
    fn schema(schemas: &mut Schemas) -> Option<Value> {
        Some(serde_json::json!({ "type": "array", "items": schemas.of::<T>() }))
    }
}

impl<T: ToSchema> Shape for JsonLines<T> {
    const MEDIA: &'static str = "application/x-ndjson";
    fn schema(schemas: &mut Schemas) -> Option<Value> {
        Some(schemas.of::<T>())
    }
}

impl Shape for Gzip {
    const MEDIA: &'static str = "application/gzip";
    fn schema(_: &mut Schemas) -> Option<Value> {
        None
    }
}

/// A JSON object without a documented schema, because it contains a secret.
pub(crate) struct AnyObject;
/// Bytes, such as an encrypted backup.
pub(crate) struct Binary;

impl Shape for AnyObject {
    fn schema(_: &mut Schemas) -> Option<Value> {
        Some(serde_json::json!({ "type": "object" }))
    }
}

impl Shape for Binary {
    const MEDIA: &'static str = "application/octet-stream";
    fn schema(_: &mut Schemas) -> Option<Value> {
        None
    }
}

impl Shape for PlainText {
    const MEDIA: &'static str = "text/plain";
    fn schema(_: &mut Schemas) -> Option<Value> {
        None
    }
}

impl Shape for Empty {
    fn schema(_: &mut Schemas) -> Option<Value> {
        None
    }
}

/// One route of the document.
pub(crate) struct Listed {
    pub(crate) path: String,
    /// `None` for a read.
    pub(crate) verb: Option<Verb>,
    pub(crate) needs: Role,
    pub(crate) what: &'static str,
    pub(crate) query: &'static [&'static str],
    pub(crate) body: Option<Value>,
    pub(crate) media: &'static str,
    pub(crate) answer: Option<Value>,
}

/// Router and document while they are built.
#[derive(Default)]
pub(crate) struct Routes {
    router: Router<Plane>,
    pub(crate) listed: Vec<Listed>,
    pub(crate) schemas: Schemas,
}

impl Routes {
    /// Adds a read, with its query parameters.
    pub(crate) fn get<A: Shape, H, T>(
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

    /// Adds an order.
    pub(crate) fn post<B: Shape, A: Shape, H, T>(
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

    /// Adds the metrics page, whose path has no version.
    pub(crate) fn page<H, T>(mut self, path: &str, what: &'static str, handler: H) -> Self
    where
        H: Handler<T, Plane>,
        T: 'static,
    {
        self.router = self.router.route(path, see(Role::Viewer, handler));
        let (path, media) = (path.to_owned(), PlainText::MEDIA);
        let needs = Role::Viewer;
        self.listed.push(Listed { path, verb: None, needs, what, query: &[], body: None, media, answer: None });
        self
    }

    /// The router, including the route of the document.
    pub(crate) fn into_router(mut self) -> Router<Plane> {
        let what = "This document";
        let (path, needs, media) = (DOCUMENT.to_owned(), Role::Viewer, "application/json");
        self.listed.push(Listed { path, verb: None, needs, what, query: &[], body: None, media, answer: None });
        let document = Bytes::from(crate::serve::admin::openapi::document(&self.listed, &mut self.schemas).to_string());
        let answer = get(async move || ([(CONTENT_TYPE, "application/json")], document));
        self.router.route(DOCUMENT, answer)
    }
}
