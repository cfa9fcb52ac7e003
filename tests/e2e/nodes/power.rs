//! A machine that is off: an operator imports it and powers it on by its BMC, which lies.

use crate::{
    bmcs::{IpmiSim, MachineRack, NODE},
    racks::{BOOT, OrEnd as _, SOON, command_lines, kernel_starts, stages, until_phase},
};
use meshd_lab::Rack;
use serde_json::Value;

/// The node gets another profile by kexec. Here, because it saves a boot of its own.
fn change_role_without_firmware(rack: &Rack) {
    let former = until_phase(rack, NODE, "online", SOON)["boot"]["session"].clone();
    rack.run_cli(&["node", "assign-profile", "gpu001", "compute"]).unwrap();
    rack.run_cli(&["node", "reboot", "--warm", "--yes", "gpu001"]).unwrap();
    let has_role = |node: &Value| node["phase"] == "online" && node["boot"]["session"] != former;
    let node = rack.wait_node(NODE, BOOT, "online in another boot", has_role).or_end();
    assert_eq!(node["profile"], "compute", "{node}");
    let stages = stages(&node);
    assert_eq!(stages.first(), Some(&"script"), "no firmware and no loader: {stages:?}");
    assert_eq!(kernel_starts(rack, NODE), 2, "one boot by the loader, one by kexec");
    let line = command_lines(rack, NODE).pop().unwrap();
    assert!(line.contains("apkovl=/apkovl.tar.gz") && !line.contains("/overlay/"), "{line}");
    assert_eq!(node["conditions"], serde_json::json!([]), "{node}");
}

#[test]
fn machine_that_is_off_comes_online_by_ipmi_and_goes_off_again() {
    let mut machine = MachineRack::up(|_| "driver = \"ipmi\", cipher_suite = 3".to_owned());
    let _sim = IpmiSim::start(&machine.test.rack, machine.bmc.path());
    // The BMC accepts the first request and does nothing; it refuses each shutdown.
    machine.write("ignore", "1");
    machine.write("deaf", "");
    let text = machine.switch(&["node", "power", "on", "gpu001"]);
    assert!(text.contains("1 done"), "{text}");
    until_phase(&machine.test.rack, NODE, "online", BOOT);
    change_role_without_firmware(&machine.test.rack);
    let text = machine.switch(&["node", "power", "off", "--yes", "gpu001"]);
    assert!(text.contains("1 done"), "{text}");
    until_phase(&machine.test.rack, NODE, "offline", SOON * 3);
    let requests = machine.read("requests");
    assert_eq!(requests.matches("set power 1\n").count(), 2, "{requests}");
    assert!(requests.contains("set shutdown") && requests.contains("set power 0"), "{requests}");
}
