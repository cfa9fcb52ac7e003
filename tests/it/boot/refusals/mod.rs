//! Requests that are refused before their end: the client receives the answer although it sends on.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `drops` | every kind of dropped request is counted, and logged once |

mod drops;

use crate::admin::https::{ADMIN, Office, PORT};
use crate::world::{CENTRAL, World};
use meshd_lab::Namespace;
use std::{
    fs,
    process::{Command, Stdio},
};

const METRICS_PORT: u16 = 9109;

/// Sends on after the answer, with another TLS and HTTP implementation; returns the status.
pub fn refusal(world: &World, from: Option<&Namespace>, at: &str, arguments: &[&str]) -> String {
    let script = world.path("early_refusal.py");
    fs::write(&script, include_str!("early_refusal.py")).unwrap();
    let mut command = Command::new("python3");
    command.arg(script).args(at.split(':')).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = match from {
        Some(namespace) => namespace.spawn(&mut command).unwrap(),
        None => command.spawn().unwrap(),
    };
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{at} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn refusal_of_a_slow_upload_reaches_the_client_on_every_api() {
    let office =
        Office::open_with(&format!("[metrics]\naddress = \"{ADMIN}\"\nport = {METRICS_PORT}"));
    let world = &office.world;
    world.nodes.ip(&["address", "add", "10.77.0.66/24", "dev", "eth0"]).unwrap();
    let token = fs::read_to_string(office.token("eyes", "viewer")).unwrap();
    let token = format!("authorization: Bearer {}", token.trim());
    let boot = format!("{CENTRAL}:8080");
    let metrics = format!("{ADMIN}:{METRICS_PORT}");
    let none = "x: y";
    for (from, at, transport, part, path, header, status) in [
        (
            &office.desk,
            format!("{ADMIN}:{PORT}"),
            "tls",
            "body",
            "/v1/reload",
            token.as_str(),
            "403",
        ),
        (&office.desk, format!("{ADMIN}:{PORT}"), "tls", "body", "/v1/reload", none, "401"),
        (&office.desk, format!("{ADMIN}:{PORT}"), "tls", "head", "/v1/reload", none, "431"),
        (&office.desk, metrics, "plain", "body", "/metrics", none, "405"),
        (&world.nodes, format!("{CENTRAL}:8443"), "tls", "body", "/v1/nothing", none, "404"),
        (&world.nodes, boot.clone(), "plain", "body", "/boot.ipxe", none, "405"),
        (&world.nodes, boot, "plain", "head", "/boot.ipxe", none, "431"),
    ] {
        assert_eq!(
            refusal(world, Some(from), &at, &[transport, part, path, header]),
            status,
            "{at} {part} {path}"
        );
    }
}
