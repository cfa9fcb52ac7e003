//! Tests that the OpenAPI document describes exactly the existing routes.

use super::*;
use crate::admin::router;
use meshd_api::routes::specs;
use serde_json::Value;
use std::collections::BTreeSet;

/// Collects all references of the document.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[tokio::test]
async fn openapi_operations_equal_routes() {
    let fixture = Fixture::start().await;
    let (_, document) = fixture.get::<Value>("GET", "/v1/openapi.json", "").await;
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().expect("paths");
    let mut operations = BTreeSet::new();
    for (path, methods) in paths {
        let methods = methods.as_object().expect("methods");
        for operation in methods.values() {
            assert!(
                operations.insert(operation["operationId"].as_str().expect("named").to_owned()),
                "{operation}"
            );
            assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{path}");
        }
        // The path accepts exactly these methods.
        let real = path
            .replace("{node}", "nobody")
            .replace("{name}", "nobody")
            .replace("{token}", "nobody");
        let real = real.replace("{task}", "nobody");
        for tried in ["GET", "POST", "DELETE"] {
            let answer = fixture.send(tried, &real, "null").await.status();
            let known = methods.contains_key(&tried.to_lowercase());
            assert_eq!(answer != StatusCode::METHOD_NOT_ALLOWED, known, "{tried} {path}: {answer}");
        }
    }
    // A route that the binder does not add would be in the router and not in the document.
    for (file, text) in
        [("router.rs", include_str!("../router.rs")), ("mod.rs", include_str!("../mod.rs"))]
    {
        assert!(
            !text.contains(".route(") && !text.contains(".nest("),
            "{file} adds a route without the binder"
        );
    }
    let names: BTreeSet<String> = specs().map(|spec| spec.name.to_ascii_lowercase()).collect();
    assert_eq!(operations, names);
}

#[test]
fn routes_have_exactly_one_handler() {
    let mut bound = router::bound().bound;
    let mut names: Vec<&str> = specs().map(|spec| spec.name).collect();
    bound.sort_unstable();
    names.sort_unstable();
    assert_eq!(bound, names);
}

#[tokio::test]
async fn openapi_references_resolve_and_requests_have_bodies() {
    let fixture = Fixture::start().await;
    let (_, document) = fixture.get::<Value>("GET", "/v1/openapi.json", "").await;
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(
        found.contains("#/components/schemas/NodeView")
            && found.contains("#/components/responses/Error")
    );
    for reference in &found {
        let pointer = reference.strip_prefix('#').expect("of this document");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    let order = &document["paths"]["/v1/nodes/{node}/assign-profile"]["post"];
    let names: Vec<&str> = order["parameters"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|it| it["name"].as_str())
        .collect();
    assert_eq!(names, ["node", "x-reason", "idempotency-key", "x-force"]);
    assert_eq!(
        order["requestBody"]["content"]["application/json"]["schema"]["$ref"],
        "#/components/schemas/AssignProfile"
    );
    assert_eq!(
        document["components"]["schemas"]["AssignProfile"]["properties"]["profile"]["type"],
        "string"
    );
    assert_eq!(document["paths"]["/v1/api-tokens/create"]["post"]["x-role"], "admin");
}
