//! Who is told what: Prometheus, the doctor, a node about the time, an operator about a capability
//! in foreign hands.

use super::{
    doctor, finding,
    rig::{Machine, Rig},
};
use crate::world::{World, eventually, node::PxeNode, write_program};
use meshd_model::fleet::Stage;
use serde_json::Value;
use std::net::Ipv4Addr;

#[tokio::test]
async fn foreign_head_request_on_capability_raises_an_alarm() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Script).await;
    let own = rig.central.boot.probe_overlay(machine.capability(), machine.address).await;
    assert!(own.is_ok() && rig.events("capability_replayed").is_empty());
    let foreign =
        rig.central.boot.probe_overlay(machine.capability(), Ipv4Addr::new(10, 77, 0, 66)).await;
    assert!(foreign.is_err());
    assert_eq!(rig.events("capability_replayed").len(), 1);
    machine.overlay().await;
}

#[test]
fn metrics_are_served_on_their_own_listener_only() {
    let mut world = World::prepared("auto");
    let site = std::fs::read_to_string(world.path("site.toml")).unwrap();
    let site = site.replace("[enroll]", "[metrics]\naddress = \"10.77.0.1\"\n[enroll]");
    std::fs::write(world.path("site.toml"), site).unwrap();
    world.start();
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let _agent = machine.start_agent(&overlay);
    world.wait_for_phase("online");
    let words = [
        "meshd_boots_total{result=\"online\",stage=\"online\"} 1",
        "meshd_nodes{phase=\"online\"} 1",
        "meshd_agent_links 1",
        "meshd_boot_stage_seconds_bucket{stage=\"overlay\"",
        "meshd_dhcp_pool_size_addresses{segment=\"br0\"} 11",
        "meshd_dhcp_pool_addresses{segment=\"br0\",state=\"leased\"} 1",
    ];
    let page = eventually("the boot and its lease are counted", || {
        let page =
            machine.get("http://10.77.0.1:9109/metrics").map_err(|error| error.to_string())?.text();
        match words.iter().find(|word| !page.contains(*word)) {
            Some(word) => Err(format!("{word} is not in\n{page}")),
            None => Ok(page),
        }
    });
    let mut types: Vec<&str> = page.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    let all = types.len();
    types.sort_unstable();
    types.dedup();
    assert_eq!(types.len(), all, "a family is announced twice in {page}");
    for hidden in [machine.mac.to_string(), machine.uuid.to_string()] {
        assert!(!page.contains(&hidden), "{hidden} in {page}");
    }
    assert_eq!(machine.get("http://10.77.0.1:9109/").unwrap().status, 404);
    assert_eq!(
        machine.get("http://10.77.0.1:8080/metrics").unwrap().status,
        404,
        "not on the boot API"
    );
}

#[test]
fn doctor_passes_sound_site_and_names_start_command_when_down() {
    let mut world = World::prepared("auto");
    let down = world.meshd(&["doctor"]);
    let text = String::from_utf8_lossy(&down.stdout).into_owned();
    assert_eq!(down.status.code(), Some(1), "{text}");
    assert!(text.contains("FAIL  meshd") && text.contains("meshd serve --site"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100 || line.contains('/')), "{text}");
    world.start();
    let findings = eventually("the DHCP service says how its segment is", || {
        let findings = doctor(&world);
        let is_reported = findings
            .as_array()
            .is_some_and(|all| all.iter().any(|finding| finding["check"] == "pool br0"));
        if is_reported { Ok(findings) } else { Err(findings.to_string()) }
    });
    assert_eq!(finding(&findings, "pool br0")["status"], "ok", "{findings}");
    for check in [
        "site",
        "meshd",
        "interface br0",
        "loaders",
        "agent",
        "overlays",
        "image small",
        "disk",
        "quarantine",
    ] {
        assert_eq!(finding(&findings, check)["status"], "ok", "{findings}");
    }
    assert!(world.meshd(&["doctor"]).status.success());
    std::fs::remove_dir_all(world.path("state/blobs")).unwrap();
    let missing = world.meshd(&["doctor", "-o", "json"]);
    assert_eq!(missing.status.code(), Some(1));
    let findings: Value = serde_json::from_slice(&missing.stdout).unwrap();
    assert_eq!(finding(&findings, "image small")["next"], "meshd image build small");
}

/// What udhcpc does on a node at each change of its lease, with a `/run` and programs of its own;
/// gives the programs' log.
fn lease_script(changes: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for program in ["ntpd", "killall", "ip"] {
        let path = bin.join(program);
        write_program(&path, "#!/bin/sh\necho \"${0##*/} $*\" >>\"$LOG\"\n");
    }
    let script =
        concat!(env!("CARGO_MANIFEST_DIR"), "/overlays/base/rootfs.alpine/usr/share/meshd/udhcpc");
    // Alpine's own script, which comes last, is not here.
    let work = format!(
        "mount -t tmpfs none /run\nchange() {{ sh {script} \"$@\" 2>/dev/null; }}\n{changes}\ntrue"
    );
    let mut command = std::process::Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &work])
        .env("LOG", dir.path().join("log"))
        .env("interface", "eth0");
    command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    assert!(command.status().unwrap().success());
    std::fs::read_to_string(dir.path().join("log")).unwrap_or_default()
}

#[test]
fn node_uses_only_time_servers_of_its_lease() {
    assert_eq!(
        lease_script("change deconfig; change bound; change renew"),
        "ip link set dev eth0 up\n"
    );
    let log = lease_script(
        "export ntpsrv='10.77.0.1 10.77.0.2'\nchange bound; change renew\nntpsrv=10.77.0.3 change renew",
    );
    assert_eq!(log, "ntpd -p 10.77.0.1 -p 10.77.0.2\nkillall ntpd\nntpd -p 10.77.0.3\n");
}
