//! `meshd vm shell` at a real guest: Debian, its kernel for clouds, cloud-init and OpenSSH, emulated.
//! That takes minutes, so the test runs where `MESHD_DEBIAN_GUEST` names the folder of the guest's
//! disk, as in `make test-debian`. The disk is built if it is missing.

use super::{
    Machine, done,
    guest_shell::{NUMBER, open, world_with_network},
    reaches,
};
use crate::world::{World, eventually_within, node::PxeNode};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const FOLDER: &str = "MESHD_DEBIAN_GUEST";
const BUILD: &str = include_str!("debian_guest.sh");
/// From the start of the VM to its SSH server, on a busy machine.
const START: Duration = Duration::from_secs(10 * 60);

fn build(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let built = Command::new("sh").args(["-c", BUILD, "sh"]).arg(folder).status().unwrap();
    assert!(built.success(), "cannot build the guest in {}", folder.display());
}

fn add(world: &World, file: &Path) -> String {
    done(world, &["volume", "add", file.to_str().unwrap()]).trim().to_owned()
}

/// Orders a VM whose cloud-init data says nothing.
fn create(world: &World, folder: &Path) {
    let boot = add(world, &folder.join("boot.iso"));
    let root = add(world, &folder.join("root.qcow2"));
    let text = format!(
        "name = \"web\"\nvcpus = 1\nmemory = \"512M\"\nallow_tcg = true\nready = \"ssh\"\n\
         [[volume]]\nname = \"boot\"\nformat = \"iso\"\ndigest = \"{boot}\"\n\
         [[volume]]\nname = \"root\"\nformat = \"qcow2\"\ndigest = \"{root}\"\n\
         [[nic]]\nbridge = \"mesh-nat0\"\naddress = \"172.30.0.9\"\n[cloud_init]\nuser_data = \"#cloud-config\\n\"\n"
    );
    let file = world.path("web.toml");
    fs::write(&file, text).unwrap();
    done(world, &["vm", "create", "--start", "-f", file.to_str().unwrap()]);
}

#[test]
fn shell_opens_at_a_debian_guest_that_cloud_init_has_set_up() {
    let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) else {
        return eprintln!("not run: {FOLDER} names no folder");
    };
    build(&folder);
    let world = world_with_network();
    let mut machine = Machine::new(&world, &PxeNode::new(&world, NUMBER).boot());
    machine.start_with_network(&[]);
    world.wait_for_phase("online");
    create(&world, &folder);
    reaches(&machine, "web", "running");
    // It has no network yet: the shell waits for it.
    let mut early = open(&world, &["web", "--user", "debian"]);
    early.shows("waiting for the guest at ");
    eventually_within(START, "the guest is ready", || {
        let vm = world.json(&["vm", "show", "web", "-o", "json"]);
        let log = || done(&world, &["vm", "logs", "web"]);
        if vm["ready"] == true { Ok(()) } else { Err(format!("{vm}\n{}", log())) }
    });
    early.shows("debian@web: ~");
    early.types(
        "stty -echo; echo user $(id -un) on $(hostname) by $(cat /run/cloud-init/cloud-id) $((6 * 7))\r",
    );
    early.shows("user debian on web by nocloud 42");
    early.types("exit 7\r");
    assert_eq!(early.exit_code(), 7);
    // Without --user and without `user` in the data: root of Debian's cloud-init names the user.
    let mut root = open(&world, &["web"]);
    root.shows("Please login as the user \"debian\" rather than the user \"root\"");
    assert_eq!(root.exit_code(), 142);
}
