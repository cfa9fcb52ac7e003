//! A machine that is off: an operator imports it and powers it on by its BMC, which lies.

use crate::{
    bmcs::{IpmiSim, MachineRack, NODE},
    racks::{BOOT, SOON, command_lines, reboot_warm, until_phase},
};
use meshd_lab::Rack;

/// The node gets another profile by kexec. Here, because it saves a boot of its own.
fn change_role_without_firmware(rack: &Rack) {
    rack.run_cli(&["node", "assign-profile", "gpu001", "compute"]).unwrap();
    let node = reboot_warm(rack, NODE);
    assert_eq!(node["profile"], "compute", "{node}");
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
