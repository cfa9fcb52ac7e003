//! A machine that is off: an operator imports it and powers it on by its BMC, which lies.

use crate::{
    bmcs::{IpmiSim, MachineRack, NODE},
    racks::{BOOT, SOON, until_phase},
};

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
    let text = machine.switch(&["node", "power", "off", "--yes", "gpu001"]);
    assert!(text.contains("1 done"), "{text}");
    until_phase(&machine.test.rack, NODE, "offline", SOON * 3);
    let requests = machine.read("requests");
    assert_eq!(requests.matches("set power 1\n").count(), 2, "{requests}");
    assert!(requests.contains("set shutdown") && requests.contains("set power 0"), "{requests}");
}

#[test]
fn machine_that_is_off_comes_online_by_redfish_and_goes_off_again() {
    let (mut machine, _bmc) = MachineRack::up_with_redfish();
    machine.write("lie", "404 2\nignore 1\nrefuse GracefulShutdown\n");
    let text = machine.switch(&["node", "power", "on", "gpu001"]);
    assert!(text.contains("1 done"), "{text}");
    until_phase(&machine.test.rack, NODE, "online", BOOT);
    let text = machine.switch(&["node", "power", "off", "--yes", "gpu001"]);
    assert!(text.contains("1 done"), "{text}");
    until_phase(&machine.test.rack, NODE, "offline", SOON * 3);
    let requests = machine.read("requests");
    assert_eq!(requests.matches("\"On\"").count(), 2, "{requests}");
    assert!(requests.contains("GracefulShutdown") && requests.contains("ForceOff"), "{requests}");
}
