//! Machines with real firmware, whose BMCs speak Redfish, are slow, forget, lock accounts and change
//! their certificates; and one with four NICs. `make test-power` runs them: they take too long for
//! `make test`. Integration tests have the same without a machine (`tests/it/nodes/redfish.rs`,
//! `tests/it/nodes/boot_times.rs`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

#[path = "../e2e/bmcs.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests")]
mod bmcs;
#[path = "../kit/mod.rs"]
#[allow(dead_code, reason = "shared with the integration tests")]
mod kit;
#[path = "../e2e/racks.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests")]
mod racks;

mod boot_path;

use bmcs::{MachineRack, NODE, PASSWORD, write_password};
use kit::redfish::make_certificate;
use racks::{BOOT, OrEnd, SOON, until_phase};
use std::fs;

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

#[test]
fn machine_comes_online_although_its_bmc_lies_in_every_other_way() {
    let (mut machine, _bmc) = MachineRack::up_with_redfish();
    let on = ["node", "power", "on", "gpu001"];
    // The account is locked after three wrong passwords.
    machine.write("lie", "lock");
    write_password(machine.bmc.path(), "wrong");
    for args in [&on[..], &["node", "boot-device", "pxe", "gpu001"], &on] {
        let (is_done, text) = machine.try_switch(args);
        assert!(!is_done && text.contains("refuse"), "{args:?}: {text}");
    }
    assert_eq!(machine.read("refusals").lines().count(), 1, "{}", machine.read("refusals"));
    write_password(machine.bmc.path(), PASSWORD);

    // The BMC has a new certificate, which nobody announced.
    let site = fs::read_to_string(machine.test.rack.site_file()).unwrap();
    let is_hash = |word: &&str| word.len() == 95 && word.matches(':').count() == 31;
    let old = site.split('"').find(is_hash).expect("the certificate of the rule").to_owned();
    let new = make_certificate(machine.bmc.path());
    let (is_done, text) = machine.try_switch(&on);
    let named = new.replace(':', "").to_lowercase();
    assert!(!is_done && text.to_lowercase().replace(':', "").contains(&named), "{text}");
    assert!(machine.read("requests").is_empty(), "nothing was changed: {text}");
    fs::write(machine.test.rack.site_file(), site.replace(&old, &new)).unwrap();
    machine.test.rack.run_cli(&["reload"]).or_end();

    // It forgets the boot device, and then each answer takes 11 s.
    machine.write("lie", "lock\nforget");
    let (is_done, text) = machine.try_switch(&["node", "boot-device", "pxe", "gpu001"]);
    assert!(!is_done && text.contains("accepted boot device Pxe"), "{text}");
    machine.write("lie", "lock\nforget\nslow 11");
    let text = machine.switch(&on);
    assert!(text.contains("1 done"), "{text}");
    until_phase(&machine.test.rack, NODE, "online", BOOT);
    let requests = machine.read("requests");
    assert_eq!(requests.matches("\"On\"").count(), 1, "no request is repeated: {requests}");
}
