//! Each route and each role: what the page about access says, and what the server answers.

use super::https::{ADMIN, Office, PORT};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    process::{Command, Stdio},
};

const ROLES: [&str; 4] = ["viewer", "auditor", "operator", "admin"];

/// The documented role of each route, by method and path; the two defaults have no path.
fn documented() -> BTreeMap<String, usize> {
    let page = include_str!("../../../docs/operations/access-and-certificates.md");
    let table = page.split("### Role of each route").nth(1).expect("the table").trim_start();
    let rows = table.lines().take_while(|line| line.starts_with('|')).skip(2);
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let route = cells[1].split('`').nth(1).expect("a route");
        (route.to_owned(), ROLES.iter().position(|role| *role == cells[2]).expect("a role"))
    };
    rows.map(row).collect()
}

/// Every route as `GET /v1/nodes`, from the document that the server generates.
fn routes(office: &Office, token_file: &str) -> Vec<String> {
    let document = request(office, token_file, &["GET /v1/openapi.json".to_owned()], true);
    let document: Value = serde_json::from_str(&document).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let methods = paths.iter().flat_map(|(path, methods)| {
        methods
            .as_object()
            .unwrap()
            .keys()
            .map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    methods.filter(|route| route.starts_with("GET ") || route.starts_with("POST ")).collect()
}

/// Sends requests with one curl; returns the body, or a line with the status of each.
fn request(office: &Office, token_file: &str, routes: &[String], shows_body: bool) -> String {
    let token = fs::read_to_string(token_file).unwrap();
    let config: Vec<String> = routes
        .iter()
        .map(|route| {
            let (method, path) = route.split_once(' ').unwrap();
            // Nothing has this name, and no order has this body.
            let path: Vec<&str> = path.split('/').map(|part| if part.starts_with('{') { "nothing" } else { part }).collect();
            let body = if method == "POST" { "data = \"{\"\nheader = \"Content-Type: application/json\"\n" } else { "" };
            let out = if shows_body { "" } else { "output = /dev/null\nwrite-out = \"%{http_code}\\n\"\n" };
            format!(
                "url = \"https://{ADMIN}:{PORT}{}\"\n{body}{out}insecure\nsilent\nmax-time = 15\nheader = \"Authorization: Bearer {}\"\n",
                path.join("/"),
                token.trim()
            )
        })
        .collect();
    let file = office.world.path("requests");
    fs::write(&file, config.join("next\n")).unwrap();
    let mut command = Command::new("curl");
    command.arg("--config").arg(&file).stdin(Stdio::null()).stdout(Stdio::piped());
    let output = office.desk.spawn(&mut command).unwrap().wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_route_requires_its_documented_role() {
    let office = Office::open();
    let tokens = ROLES.map(|role| office.token(role, role));
    let documented = documented();
    let routes = routes(&office, &tokens[3]);
    for route in documented.keys() {
        assert!(
            routes.contains(route) || !route.contains(' '),
            "the page names {route}, which is none of {routes:?}"
        );
    }
    assert!(routes.len() > 80, "{routes:?}");
    let mut faults = Vec::new();
    for (rank, role) in ROLES.iter().enumerate() {
        let answers = request(&office, &tokens[rank], &routes, false);
        assert_eq!(answers.lines().count(), routes.len(), "{answers}");
        for (route, status) in routes.iter().zip(answers.lines()) {
            let method = route.split(' ').next().unwrap();
            let required = documented.get(route).unwrap_or(&documented[method]);
            if (status == "403") != (rank < *required) || status == "401" || status == "000" {
                faults.push(format!("{route} answers {status} to a token of role {role}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
