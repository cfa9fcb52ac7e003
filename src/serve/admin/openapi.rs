//! Generates the OpenAPI document from the route table and its types.

use crate::serve::admin::{
    query::parameters::{description, schema},
    table::{Listed, Schemas},
};
use meshd_api::{CORRELATION_HEADER, CURSOR_HEADER, ErrorView, FORCE_HEADER, KEY_HEADER, REASON_HEADER, TOTAL_HEADER};
use meshd_model::fleet::MAX_REASON;
use serde_json::{Map, Value, json};

/// Version of the document's own format.
const OPENAPI: &str = "3.1.0";

/// The whole document.
pub(crate) fn document(listed: &[Listed], schemas: &mut Schemas) -> Value {
    let error = schemas.of::<ErrorView>();
    let mut paths: Map<String, Value> = Map::new();
    for route in listed {
        let method = if route.verb.is_some() { "post" } else { "get" };
        let operations = paths.entry(route.path.clone()).or_insert_with(|| json!({}));
        operations[method] = operation(route);
    }
    json!({
        "openapi": OPENAPI,
        "info": {
            "title": "meshd admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "On the Unix socket no token is needed. Over HTTPS each request carries one. Every response has a \
                            correlation ID, which also appears in the log, the events and the audit log.",
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

fn operation(route: &Listed) -> Value {
    let parameter = |place: &str, name: &str, what: String| {
        let schema = if place == "query" { schema(name) } else { json!({ "type": "string" }) };
        json!({ "name": name, "in": place, "required": place == "path", "description": what, "schema": schema })
    };
    let named = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> =
        named.map(|name| parameter("path", name, format!("ID or name of the {name}"))).collect();
    parameters.extend(route.query.iter().map(|name| parameter("query", name, description(name).to_owned())));
    if route.query.contains(&"fields") {
        let what = "the `etag` of an earlier answer: 304 if nothing changed since".to_owned();
        parameters.push(parameter("header", "if-none-match", what));
    }
    if route.verb.is_some() {
        let reason = format!("why, for the audit log: one line of at most {MAX_REASON} characters");
        let key = "a random text; the same order with the same key is followed once within a day".to_owned();
        let force = "true: also where virtual machines are lost by it".to_owned();
        let named = [(REASON_HEADER, reason), (KEY_HEADER, key), (FORCE_HEADER, force)];
        parameters.extend(named.map(|(name, what)| parameter("header", name, what)));
    }
    let mut content = json!({ route.media: {} });
    if let Some(schema) = &route.answer {
        content[route.media] = json!({ "schema": schema });
    }
    let mut operation = json!({
        "operationId": id(route),
        "summary": route.what,
        "description": format!("Requires role `{}`.", route.needs),
        "x-role": route.needs,
        "parameters": parameters,
        "responses": {
            "200": { "description": "Success", "content": content },
            "431": { "description": "The path, the query and the headers together are too long." },
            "default": { "$ref": "#/components/responses/Error" },
        },
    });
    if route.query.contains(&"fields") {
        let header = |what: &str| json!({ "description": what, "schema": { "type": "string" } });
        operation["responses"]["200"]["headers"] = json!({
            CURSOR_HEADER: header("the value of `after` for the next page; absent on the last page"),
            TOTAL_HEADER: header("rows of all pages, where they are counted"),
            "etag": header("the value of `if-none-match` for the next request"),
        });
        operation["responses"]["304"] =
            json!({ "description": "Nothing changed since the response with this entity tag." });
    }
    if let Some(schema) = &route.body {
        operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    operation
}

/// The operation ID: method and path without separators.
fn id(route: &Listed) -> String {
    let words = route.path.split('/').skip(1).filter(|part| *part != "v1");
    let words: Vec<String> = words.map(|part| part.trim_matches(['{', '}']).replace(['-', '.'], "_")).collect();
    format!("{}_{}", if route.verb.is_some() { "order" } else { "see" }, words.join("_"))
}
