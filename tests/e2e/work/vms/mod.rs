//! A netbooted node runs VMs under its own KVM: one with a GPU given whole, one that reaches beyond
//! the node by the private network, one on the site's own with a slot and its disk. Its console
//! from here to the guest and back, what befalls the network, the death of the agent, the death of
//! QEMU, and the end of KVM. One boot.

pub mod guest;
mod networks;
mod private_net;

use crate::{
    overlays,
    racks::{BOOT, OrEnd, SOON, retry_dead_emulator, until_phase, until_written, up_alone},
};
use guest::{DEADLINE, HELLO, Operator, SEEN};
use meshd_lab::{Extra, LabError, Rack, Wait};
use networks::{check_private_network, check_site_bridge_and_slot, run_client, start_server};
use private_net::{ADDRESS, MAC};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

const NODE: u8 = 1;

/// A service of the node that interferes with its VMs. The steps wait for letters that the test
/// types at the guest's console: the guest answers each with the next letter of the alphabet.
const TRIAL: &str = include_str!("trial.initd");

/// The repository's overlays, and one that prepares the node for the test.
fn with_trial(dir: &Path) -> PathBuf {
    let overlays = overlays::with_service(dir, "trial", TRIAL);
    private_net::add_forget(&overlays.join("trial"));
    overlays
}

fn shown(rack: &Rack) -> Value {
    rack.query(&["vm", "show", "one"]).or_end()
}

fn reaches(rack: &Rack, after: Duration, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let look = |rack: &Rack| {
        let vm = rack.query(&["vm", "show", "one"])?;
        Ok(Wait::some(is(&vm).then(|| vm.clone()), vm.to_string()))
    };
    rack.wait(after, what, look).or_end()
}

fn tried(serial: &str, word: &str) -> String {
    let line =
        serial.lines().find_map(|line| line.split_once(&format!("{word} ")).map(|(_, rest)| rest));
    line.unwrap_or_else(|| panic!("the node wrote no {word}")).trim().to_owned()
}

fn gpu(rack: &Rack) -> String {
    let node = rack.query(&["node", "show", &rack.id(NODE).to_string()]).or_end();
    node["facts"]["units"][0]["members"][0]["address"].as_str().expect("the GPU").to_owned()
}

/// A machine that gets the node's GPU.
fn create_with_gpu(rack: &Rack, digest: &str, toml: &Path) {
    let unit = gpu(rack);
    let text = format!(
        "name = \"one\"\nvcpus = 1\nmemory = \"64M\"\nunits = [\"{unit}\"]\n\
         [[volume]]\nname = \"root\"\nformat = \"qcow2\"\ndigest = \"{digest}\"\n"
    );
    fs::write(toml, text).expect("written");
    rack.run_cli(&["vm", "create", "--start", "-f", toml.to_str().expect("plain")]).or_end();
}

/// The folder of blobs is shared with other tests.
fn volumes_are_gone(rack: &Rack, digest: &str, cd: &str) {
    rack.wait(SOON, "nothing is left", |rack| {
        let output = [digest, cd].map(|digest| {
            rack.run_cli(&["volume", "remove", digest, "--yes"]).map_err(|error| error.to_string())
        });
        let left = rack.query(&["volume", "list"])?.to_string();
        let is_gone = !left.contains(digest) && !left.contains(cd);
        Ok(Wait::some(is_gone.then_some(()), format!("{output:?}")))
    })
    .or_end();
}

/// Without KVM its own check says so, and it takes no work: neither what it has nor anything new.
fn takes_no_work(rack: &Rack, toml: &Path) {
    // Degraded alone it is after each link, too, until its checks are there; and then an order
    // waits.
    let lacks_kvm = |node: &Value| node["conditions"].to_string().contains("cannot open /dev/kvm");
    rack.wait_node(NODE, DEADLINE, "degraded for want of KVM", lacks_kvm).or_end();
    let refused =
        |output: Result<String, LabError>| output.expect_err("there is no KVM").to_string();
    let output = refused(rack.run_cli(&["vm", "start", "one"]));
    assert!(output.contains("degraded"), "{output}");
    let other = fs::read_to_string(toml).expect("there").replace("\"one\"", "\"two\"");
    fs::write(toml, other).expect("written");
    let output =
        refused(rack.run_cli(&["vm", "create", "--start", "-f", toml.to_str().expect("plain")]));
    assert!(output.contains("kvm_missing"), "{output}");
}

#[test]
fn netbooted_node_runs_vms_with_gpu_disk_and_networks_through_crashes() {
    retry_dead_emulator(run_machines);
}

fn run_machines() {
    let mut files = None;
    let mut test = up_alone(|mut options, dir| {
        files = Some((guest::image(dir), dir.join("one.toml"), dir.join("lab/site.toml")));
        options.nodes = 1;
        options.extras = vec![vec![Extra::Iommu, Extra::Gpu, Extra::Disk]];
        options
            .set("enroll.policy", "auto")
            .set("dhcp.router", "10.77.0.1")
            .set("site.overlays_dir", &with_trial(dir).display().to_string())
            .set("defaults.profile", "vm-host")
            .set("profiles.vm-host.extends", "discovery")
            .set("profiles.vm-host.overlays", r#"["vfio", "kvm-host", "bridge", "trial"]"#)
            .set("profiles.vm-host.bundles", r#"["qemu"]"#)
            .set("profiles.vm-host.vars", "{ kvm_nat = true }")
            .set("profiles.vm-host.vfio.devices", r#"["class:0300"]"#)
    });
    let (image, toml, site) = files.expect("made");
    let rack = &mut test.rack;
    let digest =
        rack.run_cli(&["volume", "add", image.to_str().expect("plain")]).or_end().trim().to_owned();
    until_phase(rack, NODE, "online", BOOT);
    let dir = toml.parent().expect("a folder");
    let (server, cd) = start_server(rack, dir);
    let other = check_site_bridge_and_slot(rack, dir, &server, &cd, &digest);
    create_with_gpu(rack, &digest, &toml);
    let card = format!("bridge = \"mesh-nat0\"\nmac = \"{MAC}\"\naddress = \"{ADDRESS}\"");
    run_client(rack, dir, "net", &cd, &card, ("", ""));
    reaches(rack, DEADLINE, "the machine runs", |vm| vm["state"] == "running");

    let mut operator = Operator::attach(&site);
    operator.expect_text(&format!("{HELLO}{SEEN}"));
    let serial = until_written(rack, NODE, "TRIAL-UNIT", SOON);
    assert_eq!(tried(&serial, "TRIAL-ACCEL"), "-accel kvm");
    assert_eq!(tried(&serial, "TRIAL-CPUS"), "1 root 0", "the machine has a processor for itself");
    assert!(tried(&serial, "TRIAL-UNIT").contains("in_use"), "{}", tried(&serial, "TRIAL-UNIT"));
    check_private_network(rack, &server, other);
    operator.types(b'H');
    operator.expect_text(&format!("{SEEN}I"));

    // The agent is killed now; its supervisor starts another, which has the machine.
    let serial = until_written(rack, NODE, "TRIAL-TAKEN", DEADLINE);
    assert_eq!(tried(&serial, "TRIAL-TAKEN"), "runs");
    reaches(rack, SOON, "it is linked again", |vm| vm["state"] == "running");
    drop(operator);
    let mut operator = rack
        .wait(SOON, "the console is brought again", |rack| {
            let log = rack.run_cli(&["vm", "logs", "one"]);
            let is = log.as_ref().is_ok_and(|log| log.contains(&format!("{SEEN}I")));
            Ok(Wait::some(is.then(|| Operator::attach(&site)), format!("{log:?}")))
        })
        .or_end();
    operator.expect_text(HELLO);
    assert_eq!(shown(rack)["restarts"], 0);
    rack.run_cli(&["vm", "delete", "net", "--yes"]).or_end();
    operator.types(b'X');
    let serial = until_written(rack, NODE, "TRIAL-RELEASED", SOON);
    assert_eq!(tried(&serial, "TRIAL-RELEASED"), "1", "its port and its folder are gone");

    // QEMU is killed now, and then the node has no KVM any more.
    let failed = reaches(rack, SOON, "the crash is reported", |vm| vm["state"] == "failed");
    assert_eq!(failed["failure"]["kind"], "crashed", "{failed}");
    until_written(rack, NODE, "TRIAL-END", SOON);
    takes_no_work(rack, &toml);
    rack.run_cli(&["vm", "delete", "one", "--yes"]).or_end();
    volumes_are_gone(rack, &digest, &cd);
}
