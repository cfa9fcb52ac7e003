//! Schemathesis against the admin API: requests derived from its OpenAPI document, valid and
//! invalid ones.

use super::https::{ADMIN, Office, PORT};
use crate::kit::python_tools;
use std::{
    fs,
    process::{Command, Stdio},
};

/// A WebSocket, and a stream: neither is a response that ends.
const ENDLESS: [&str; 6] = [
    "open_vm_console",
    "open_vm_shell",
    "open_node_shell",
    "open_container_exec",
    "open_task_input",
    "stream_events",
];
/// Requests for each operation and kind of data.
const EXAMPLES: &str = "6";
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
    response_schema_conformance,unsupported_method";

#[test]
fn schemathesis_finds_no_server_error_and_no_answer_outside_the_schema() {
    let office = Office::open();
    let token = fs::read_to_string(office.token("schema", "admin")).unwrap();
    // An answer that follows what happens does not end.
    let config = office.world.path("schemathesis.toml");
    fs::write(&config, "[parameters]\n\"query.follow\" = false\n").unwrap();
    let mut command = Command::new(python_tools().join("bin/schemathesis"));
    command.arg("--config-file").arg(&config);
    command.args([
        "run",
        &format!("https://{ADMIN}:{PORT}/v1/openapi.json"),
        "--tls-verify",
        "false",
        "--no-color",
    ]);
    command.args([
        "--header",
        &format!("Authorization: Bearer {}", token.trim()),
        "--checks",
        CHECKS,
    ]);
    command.args([
        "--phases",
        "coverage,fuzzing",
        "--max-examples",
        EXAMPLES,
        "--seed",
        "1",
        "--request-timeout",
        "20",
    ]);
    command.args(["--continue-on-failure", "--generation-database", "none", "--warnings", "off"]);
    for operation in ENDLESS {
        command.args(["--exclude-operation-id", operation]);
    }
    command
        .current_dir(office.world.path(""))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = office.desk.spawn(&mut command).unwrap().wait_with_output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(report.contains("No issues found"), "{report}");
}
