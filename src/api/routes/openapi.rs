//! Generates the OpenAPI document from the routes and their types.

use super::{
    all,
    body_schema::Schemas,
    route::{Route, RouteSpec},
};
use crate::{
    CORRELATION_HEADER, CURSOR_HEADER, ErrorView, FORCE_HEADER, KEY_HEADER, REASON_HEADER,
    TOTAL_HEADER,
};
use meshd_model::fleet::MAX_REASON;
use serde_json::{Map, Value, json};

/// Version of the OpenAPI format.
const OPENAPI: &str = "3.1.0";
/// Maximum length of the value of a query parameter, in bytes.
pub const MAX_QUERY_VALUE: usize = 1024;
/// Maximum length of the query parameter `nodes`, in bytes: names without ranges are long.
pub const MAX_QUERY_NODES: usize = 8 * 1024;

/// Returns the maximum length of the value of a query parameter, in bytes.
pub fn max_query_value(name: &str) -> usize {
    if name == "nodes" { MAX_QUERY_NODES } else { MAX_QUERY_VALUE }
}

/// Returns the OpenAPI document of all routes.
pub fn document() -> Value {
    let mut schemas = Schemas::default();
    let error = schemas.reference::<ErrorView>();
    let mut paths: Map<String, Value> = Map::new();
    for route in all() {
        let RouteSpec { path, verb, .. } = route.spec();
        let operations = paths.entry(path).or_insert_with(|| json!({}));
        operations[if verb.is_some() { "post" } else { "get" }] = operation(route, &mut schemas);
    }
    json!({
        "openapi": OPENAPI,
        "info": {
            "title": "meshd admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "On the Unix socket no token is needed. Over HTTPS each request carries one. Every response has a \
                            correlation ID, which also appears in the log, the events and the audit log. An order with `if-match` or \
                            `if-none-match` is refused with status 412: orders for several nodes compare the field `revision` instead.",
        },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "responses": { "Error": {
                "description": "The request failed.",
                "headers": { CORRELATION_HEADER: { "schema": { "type": "string" } } },
                "content": { "application/json": { "schema": error } },
            } },
            "schemas": schemas.0,
        },
    })
}

fn operation(route: &dyn Route, schemas: &mut Schemas) -> Value {
    let spec = route.spec();
    let mut schema = route.response(schemas);
    if let Some(schema) = schema.as_mut().filter(|_| spec.query.contains(&"fields")) {
        allow_selected_fields(schema, schemas);
    }
    let content = match schema {
        Some(schema) => json!({ route.media(): { "schema": schema } }),
        None => json!({ route.media(): {} }),
    };
    let mut operation = json!({
        "operationId": spec.name.to_ascii_lowercase(),
        "summary": spec.summary,
        "description": format!("Requires role `{}`.", spec.role),
        "x-role": spec.role,
        "parameters": parameters(&spec),
        "responses": {
            "200": { "description": "Success", "content": content },
            "431": { "description": "The path, the query and the headers together are too long." },
            "default": { "$ref": "#/components/responses/Error" },
        },
    });
    if is_list(&spec) {
        let header = |description: &str| json!({ "description": description, "schema": { "type": "string" } });
        operation["responses"]["200"]["headers"] = json!({
            CURSOR_HEADER: header("the value of `after` for the next page; absent on the last page"),
            TOTAL_HEADER: header("rows of all pages, where they are counted"),
            "etag": header("the value of `if-none-match` for the next request"),
        });
        operation["responses"]["304"] =
            json!({ "description": "Nothing changed since the response with this entity tag." });
    }
    if let Some(schema) = route.request(schemas) {
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    operation
}

/// Adds the rows of a request with `fields` to the schema of a list: they contain some properties
/// of a complete row, in any selection.
fn allow_selected_fields(schema: &mut Value, schemas: &mut Schemas) {
    let row = if schema["type"] == "array" { &mut schema["items"] } else { schema };
    let Some(name) =
        row["$ref"].as_str().and_then(|path| path.rsplit('/').next()).map(str::to_owned)
    else {
        return;
    };
    let selected = format!("{name}Fields");
    let mut partial = schemas.0.get(&name).cloned().unwrap_or_default();
    without_required(&mut partial, schemas);
    schemas.0.insert(selected.clone(), partial);
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    *row = json!({ "anyOf": [reference(&name), reference(&selected)] });
}

/// Removes the required properties of a type and its flattened parts, but not those of the types of
/// its properties.
fn without_required(schema: &mut Value, schemas: &Schemas) {
    let part = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
    if let Some(part) = part.map(|name| schemas.0.get(name).cloned().unwrap_or_default()) {
        *schema = part;
    }
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("required");
        fields
            .get_mut("allOf")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
            .for_each(|part| without_required(part, schemas));
    }
}

/// Returns true for a list. Routes that select fields return pages with entity tags.
fn is_list(spec: &RouteSpec) -> bool {
    spec.query.contains(&"fields")
}

fn parameters(spec: &RouteSpec) -> Vec<Value> {
    let parameter = |location: &str, name: &str, description: String| {
        let schema = if location == "query" { schema(name) } else { json!({ "type": "string" }) };
        let required = location == "path";
        json!({ "name": name, "in": location, "required": required, "description": description, "schema": schema })
    };
    let names = spec.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> =
        names.map(|name| parameter("path", name, format!("ID or name of the {name}"))).collect();
    parameters.extend(
        spec.query.iter().map(|name| parameter("query", name, description(name).to_owned())),
    );
    if is_list(spec) {
        let description =
            "the `etag` of an earlier response: 304 if nothing changed since".to_owned();
        parameters.push(parameter("header", "if-none-match", description));
    }
    if spec.verb.is_some() {
        let reason =
            format!("reason for the audit log: one line of at most {MAX_REASON} characters");
        let key =
            "a random text; an order with the same key is executed once within a day".to_owned();
        let force = "true: permits the loss of VMs".to_owned();
        let headers = [(REASON_HEADER, reason), (KEY_HEADER, key), (FORCE_HEADER, force)];
        parameters
            .extend(headers.map(|(name, description)| parameter("header", name, description)));
    }
    parameters
}

/// Returns the description of a query parameter.
fn description(name: &str) -> &'static str {
    match name {
        "after" => {
            "the cursor of the previous response (header x-next-cursor); for logs the number of a record"
        }
        "limit" => "maximum number of rows: 1 to 1000, for logs up to 10000",
        "sort" => "the order; a minus sign in front reverses it",
        "fields" => "only these fields of each row, with commas between them",
        "q" => "only rows that contain this text, in upper or lower case; 2 to 100 characters",
        "phase" => "only nodes in one of these phases, with commas between them",
        "profile" => "only nodes that boot one of these profiles, with commas between them",
        "nodes" => "only these nodes: a hostlist, such as gpu[001-040,050] or gpu*",
        "label" => "a selector of labels, such as rack=a,feed!=2",
        "removed" => "true: also removed nodes",
        "state" => "only rows in one of these states, with commas between them",
        "image" => "only containers of this image: name or digest",
        "group" => "only tasks of this group",
        "node" => "only rows of this node: ID or name",
        "actor" => "only orders of this actor",
        "kind" => "only events of these kinds, with commas between them",
        "follow" => "true: continues with new rows",
        "path" => "only this file, with its text",
        "tail" => "maximum number of bytes, from the end",
        "argv" => "program and arguments, as a JSON list of texts",
        _ => "",
    }
}

/// Returns the JSON Schema of a query parameter.
fn schema(name: &str) -> Value {
    match name {
        "limit" => json!({ "type": "integer", "minimum": 1, "maximum": 10_000 }),
        "from" | "tail" => json!({ "type": "integer", "minimum": 0 }),
        "follow" | "removed" => json!({ "type": "boolean" }),
        _ => json!({ "type": "string", "maxLength": max_query_value(name) }),
    }
}
