//! Kea with leases in a file, two threads, and nothing that costs time beside.

use crate::frame::{SERVER, SERVER_INTERFACE, Server, Wire};
use anyhow::Context as _;
use serde_json::json;
use std::{
    fs::{self, File},
    process::{Command, Stdio},
};

/// Starts Kea with an empty lease file.
pub fn start(wire: &Wire) -> anyhow::Result<Server> {
    let dir = wire.path("kea");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let log = dir.join("log");
    let config = json!({ "Dhcp4": {
        "interfaces-config": { "interfaces": [SERVER_INTERFACE], "dhcp-socket-type": "udp" },
        "lease-database": { "type": "memfile", "persist": true, "name": dir.join("leases.csv"), "lfc-interval": 0 },
        "multi-threading": { "enable-multi-threading": true, "thread-pool-size": 2, "packet-queue-size": 64 },
        "valid-lifetime": 3600,
        "subnet4": [{ "subnet": "10.78.0.0/16", "pools": [{ "pool": "10.78.16.0-10.78.255.250" }] }],
        "option-data": [{ "name": "dhcp-server-identifier", "data": SERVER.to_string() }],
        "loggers": [{ "name": "kea-dhcp4", "severity": "WARN", "output_options": [{ "output": log }] }],
    } });
    let file = dir.join("kea.json");
    fs::write(&file, config.to_string()).context("write Kea's configuration")?;
    let mut command = Command::new("kea-dhcp4");
    command.arg("-c").arg(&file).env("KEA_PIDFILE_DIR", &dir).env("KEA_LOCKFILE_DIR", &dir);
    let talk = File::create(dir.join("talk"))?;
    command.stdin(Stdio::null()).stdout(talk.try_clone()?).stderr(talk);
    let listens = || {
        let sockets =
            Command::new("ip").args(["netns", "exec", wire.server.name(), "ss", "-Huln"]).output();
        sockets.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(":67 "))
    };
    Server::start(&wire.server, &mut command, listens)
        .with_context(|| fs::read_to_string(dir.join("talk")).unwrap_or_default())
}
