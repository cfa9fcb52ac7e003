//! Types of request and response bodies, with their media types and JSON Schemas.

use serde_json::{Value, json};
use std::{collections::BTreeMap, marker::PhantomData};
use utoipa::{PartialSchema, ToSchema};

/// JSON Schemas by the names of their types.
#[derive(Default)]
pub struct Schemas(pub(super) BTreeMap<String, Value>);

impl Schemas {
    /// Returns a reference to the schema of a type. Adds the schemas of the type and of all types
    /// in it.
    pub(super) fn reference<T: ToSchema>(&mut self) -> Value {
        let name = T::name().into_owned();
        let mut inner = Vec::new();
        T::schemas(&mut inner);
        let outer = (name.clone(), <T as PartialSchema>::schema());
        for (name, schema) in inner.into_iter().chain([outer]) {
            let schema = || serde_json::to_value(&schema).expect("a schema is plain data");
            let known = self.0.entry(name).or_insert_with(schema);
            debug_assert_eq!(*known, schema(), "two types have the same name");
        }
        json!({ "$ref": format!("#/components/schemas/{name}") })
    }
}

/// A request or response body.
pub trait Shape {
    const MEDIA: &'static str = "application/json";

    /// Returns the schema of the body, if it has one.
    fn schema(_: &mut Schemas) -> Option<Value> {
        None
    }
}

/// A body that a client encodes or decodes as a whole.
pub trait Json: Shape {
    type Value;
}

/// A JSON object.
pub struct Object<T>(PhantomData<T>);
/// A JSON object or `null`.
pub struct Nullable<T>(PhantomData<T>);
/// A JSON array.
pub struct Array<T>(PhantomData<T>);
/// A JSON object without a documented schema, because the type contains a secret.
pub struct AnyObject<T>(PhantomData<T>);
/// JSON without a schema.
pub struct UntypedJson;
/// No body, or `null`.
pub struct Empty;
/// Newline-delimited JSON.
pub struct JsonLines<T>(PhantomData<T>);
/// Server-sent events (HTML, 9.2).
pub struct ServerSentEvents;
/// Plain text, such as Prometheus metrics.
pub struct PlainText;
/// A gzip-compressed tar archive, such as an apkovl.
pub struct Gzip;
/// Binary data, such as an encrypted backup.
pub struct Binary;

impl<T: ToSchema> Shape for Object<T> {
    fn schema(schemas: &mut Schemas) -> Option<Value> {
        Some(schemas.reference::<T>())
    }
}

impl<T: ToSchema> Json for Object<T> {
    type Value = T;
}

impl<T: ToSchema> Shape for Nullable<T> {
    fn schema(schemas: &mut Schemas) -> Option<Value> {
        Some(json!({ "oneOf": [schemas.reference::<T>(), { "type": "null" }] }))
    }
}

impl<T: ToSchema> Json for Nullable<T> {
    type Value = Option<T>;
}

impl<T: ToSchema> Shape for Array<T> {
    fn schema(schemas: &mut Schemas) -> Option<Value> {
        Some(json!({ "type": "array", "items": schemas.reference::<T>() }))
    }
}

impl<T: ToSchema> Json for Array<T> {
    type Value = Vec<T>;
}

impl<T> Shape for AnyObject<T> {
    fn schema(_: &mut Schemas) -> Option<Value> {
        Some(json!({ "type": "object" }))
    }
}

impl<T> Json for AnyObject<T> {
    type Value = T;
}

impl Shape for UntypedJson {}

impl Json for UntypedJson {
    type Value = Value;
}

impl Shape for Empty {}

impl Json for Empty {
    type Value = ();
}

impl<T: ToSchema> Shape for JsonLines<T> {
    const MEDIA: &'static str = "application/x-ndjson";

    fn schema(schemas: &mut Schemas) -> Option<Value> {
        Some(schemas.reference::<T>())
    }
}

impl Shape for ServerSentEvents {
    const MEDIA: &'static str = "text/event-stream";
}

impl Shape for PlainText {
    const MEDIA: &'static str = "text/plain";
}

impl Shape for Gzip {
    const MEDIA: &'static str = "application/gzip";
}

impl Shape for Binary {
    const MEDIA: &'static str = "application/octet-stream";
}
