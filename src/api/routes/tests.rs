//! Tests of the routes and of the paths that clients build from them.

use super::*;
use std::collections::BTreeSet;

#[test]
fn operation_ids_are_unique_verb_and_noun() {
    let mut names = BTreeSet::new();
    for spec in specs() {
        assert!(names.insert(spec.name), "{} occurs twice", spec.name);
        assert!(
            spec.name == "SEARCH" || spec.name.contains('_'),
            "{} is no verb and noun",
            spec.name
        );
        assert!(spec.name.chars().all(|c| c.is_ascii_uppercase() || c == '_'), "{}", spec.name);
    }
    let paths: BTreeSet<_> = specs().map(|spec| (spec.path, spec.verb.is_some())).collect();
    assert_eq!((names.len(), paths.len()), (144, 144), "each route has its own path and method");
}

#[test]
fn openapi_document_has_no_links_to_rust_items() {
    let document = document().to_string();
    assert!(document.contains("SMBIOS identity"), "types of nodes are documented, too");
    assert!(!document.contains("[`"), "write a value or a name of the API");
}

#[test]
fn path_parameters_and_query_values_are_percent_encoded() {
    let cases = [
        (RENAME_NODE.path([&"c01"]).as_str().to_owned(), "/v1/nodes/c01/rename"),
        (
            RENAME_NODE.path([&"a/b ?#%ü"]).as_str().to_owned(),
            "/v1/nodes/a%2Fb%20%3F%23%25%C3%BC/rename",
        ),
        (GET_NODE.path([&".."]).as_str().to_owned(), "/v1/nodes/%2E%2E"),
        (GET_NODE.path([&"{node}"]).as_str().to_owned(), "/v1/nodes/%7Bnode%7D"),
        (
            GET_SLOT.path([&"c01", &"0000:41:00.0"]).as_str().to_owned(),
            "/v1/slots/c01/0000%3A41%3A00.0",
        ),
        (LIST_NODES.path([]).as_str().to_owned(), "/v1/nodes"),
        (
            LIST_NODES
                .path([])
                .with("removed", true)
                .with_optional("label", Some("rack=a&b"))
                .as_str()
                .to_owned(),
            "/v1/nodes?removed=true&label=rack%3Da%26b",
        ),
        (LIST_NODES.path([]).with_optional("q", None::<&str>).as_str().to_owned(), "/v1/nodes"),
    ];
    for (path, expected) in cases {
        assert_eq!(path, expected);
    }
}

#[test]
#[should_panic(expected = "has no parameter `profiles`")]
fn unknown_query_parameter_of_route_panics() {
    let _ = LIST_NODES.path([]).with("profiles", "gpu");
}

#[test]
fn access_changes_require_admin_role() {
    let admin: BTreeSet<_> = specs()
        .filter(|spec| spec.role == meshd_trust::Role::Admin)
        .map(|spec| spec.name)
        .collect();
    let expected = [
        "CREATE_API_TOKEN",
        "CREATE_BACKUP",
        "CREATE_TOKEN",
        "OPEN_CONTAINER_EXEC",
        "OPEN_NODE_SHELL",
        "OPEN_VM_SHELL",
        "REVOKE_API_TOKEN",
        "REVOKE_NODE_CERTIFICATE",
        "REVOKE_TOKEN",
        "ROTATE_ROOT",
    ];
    assert_eq!(admin, expected.into());
    assert!(
        specs()
            .filter(|spec| spec.verb.is_some())
            .all(|spec| spec.role >= meshd_trust::Role::Operator)
    );
}
