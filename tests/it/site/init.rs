//! `meshd init` on a machine with a boot network: the real program, beside a real dnsmasq.

use crate::{
    boot::dhcp::dnsmasq,
    world::{World, stderr},
};
use std::{
    fs,
    net::UdpSocket,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output, Stdio},
};

/// Runs `meshd init` for a new site file in the folder of the world.
fn init(world: &World, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
    command.arg("--site").arg(world.path("new.toml")).arg("init").args(args).stdin(Stdio::null());
    world
        .central
        .spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
        .unwrap()
        .wait_with_output()
        .unwrap()
}

fn value(world: &World, key: &str) -> String {
    let text = fs::read_to_string(world.path("new.toml")).unwrap();
    let line =
        text.lines().find_map(|line| line.strip_prefix(&format!("{key} = "))).map(str::to_owned);
    line.unwrap_or_else(|| panic!("no {key} in {text}"))
}

#[test]
fn written_site_passes_check_and_next_commands_are_printed() {
    let world = World::prepared("auto");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["overlays", "images"] {
        symlink(repository.join(folder), world.path(folder)).unwrap();
    }
    let output = init(&world, &["--name", "rack-7"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("no other DHCP server answers"), "{}", stderr(&output));
    assert!(stderr(&output).contains("next: meshd check --site"), "{}", stderr(&output));
    let values = ["name", "interface", "address", "mode", "range"].map(|key| value(&world, key));
    assert_eq!(
        values,
        [
            "\"rack-7\"",
            "\"br0\"",
            "\"10.77.0.1\"",
            "\"authoritative\"",
            "\"10.77.0.102-10.77.0.203\""
        ]
    );
    // An agent of this build is dynamic, which `check` refuses.
    let text = fs::read_to_string(world.path("new.toml")).unwrap();
    let sample = "#binary = \"target/agent/x86_64/mesh-agent\"";
    assert!(text.contains(sample));
    fs::write(world.path("new.toml"), text.replace(sample, "binary = \"agent\"")).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_meshd"));
    let check = world
        .central
        .spawn(check.arg("--site").arg(world.path("new.toml")).arg("check").stderr(Stdio::piped()));
    let check = check.unwrap().wait_with_output().unwrap();
    assert!(check.status.success(), "{}", stderr(&check));
}

#[test]
fn other_dhcp_server_is_named_and_the_mode_becomes_proxy() {
    let world = World::prepared("auto");
    let _server = dnsmasq(&world, &["--dhcp-range=10.77.0.150,10.77.0.160,1h"]);
    let output = init(&world, &[]);
    assert!(
        output.status.success()
            && stderr(&output).contains("another DHCP server answers: 10.77.0.9"),
        "{}",
        stderr(&output)
    );
    assert_eq!(value(&world, "mode"), "\"proxy\"");
    // An operator who knows better is obeyed.
    assert!(init(&world, &["--force", "--mode", "authoritative"]).status.success());
    assert_eq!(value(&world, "mode"), "\"authoritative\"");
}

#[test]
fn existing_site_file_is_kept_unless_forced() {
    let world = World::prepared("auto");
    fs::write(world.path("new.toml"), "mine").unwrap();
    let refused = init(&world, &[]);
    assert!(
        !refused.status.success() && stderr(&refused).contains("the file exists"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(fs::read_to_string(world.path("new.toml")).unwrap(), "mine");
    let refused = init(&world, &["--force", "--range", "10.77.0.9-10.77.0.8"]);
    assert!(!refused.status.success(), "the range is no range");
    assert_eq!(fs::read_to_string(world.path("new.toml")).unwrap(), "mine");
}

#[test]
fn taken_port_and_unclear_interface_are_reported() {
    let world = World::prepared("auto");
    let _tftp = world.central.inside(|| UdpSocket::bind("10.77.0.1:69")).unwrap().unwrap();
    let output = init(&world, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("warning: TFTP: UDP port 69 is taken by another program"),
        "{}",
        stderr(&output)
    );
    world.central.ip(&["link", "add", "rack2", "type", "veth", "peer", "name", "rack3"]).unwrap();
    world.central.ip(&["address", "add", "10.99.0.1/24", "dev", "rack2"]).unwrap();
    let refused = init(&world, &["--force"]);
    let expected = "there are br0 (10.77.0.1/24), rack2 (10.99.0.1/24)";
    assert!(
        !refused.status.success() && stderr(&refused).contains(expected),
        "{}",
        stderr(&refused)
    );
    let unknown = init(&world, &["--force", "--interface", "br7"]);
    assert!(
        !unknown.status.success() && stderr(&unknown).contains("cannot use interface br7"),
        "{}",
        stderr(&unknown)
    );
}

#[test]
fn site_of_an_empty_folder_names_what_to_copy_and_is_valid_elsewhere() {
    let world = World::prepared("auto");
    world.central.ip(&["address", "flush", "dev", "br0"]).unwrap();
    world.central.ip(&["address", "add", "10.77.0.1/20", "dev", "br0"]).unwrap();
    let output = init(&world, &["--range", "10.77.3.0-10.77.6.255"]);
    assert!(
        output.status.success() && stderr(&output).contains("copy overlays and images from"),
        "{}",
        stderr(&output)
    );
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["overlays", "images"] {
        symlink(repository.join(folder), world.path(folder)).unwrap();
    }
    let text = fs::read_to_string(world.path("new.toml")).unwrap();
    let sample = "#binary = \"target/agent/x86_64/mesh-agent\"";
    fs::write(world.path("new.toml"), text.replace(sample, "binary = \"agent\"")).unwrap();
    // This namespace has no br0.
    let mut check = Command::new(env!("CARGO_BIN_EXE_meshd"));
    let check = check.arg("--site").arg(world.path("new.toml")).arg("check").output().unwrap();
    assert!(check.status.success(), "{}", stderr(&check));
}
