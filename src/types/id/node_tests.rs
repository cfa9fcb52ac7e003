//! Tests of the node ID against independently computed values.

use super::*;
use proptest::prelude::*;

fn hardware(uuid: &str, triple: [&str; 3], macs: &[&str]) -> Hardware {
    let [manufacturer, product, serial] = triple.map(str::to_owned);
    let macs = macs.iter().filter_map(|mac| mac.parse().ok()).collect();
    Hardware { uuid: uuid.parse().ok(), manufacturer, product, serial, macs }
}

fn basis(hardware: &Hardware) -> String {
    hardware.basis(&DenyList::new()).expect("something is known").to_string()
}

#[test]
fn node_id_equals_independently_computed_value() {
    // printf 'mesh-node-id/1\nuuid:01020304-0506-0708-090a-0b0c0d0e0f10' | sha256sum, then base32
    // of the first 5 bytes.
    let known = hardware("01020304-0506-0708-090A-0B0C0D0E0F10", ["", "", ""], &[]);
    assert_eq!(basis(&known), "uuid:01020304-0506-0708-090a-0b0c0d0e0f10");
    assert_eq!(
        known.basis(&DenyList::new()).map(|b| b.node_id().to_string()),
        Some("38y4a8ck".to_owned())
    );
}

#[test]
fn basis_is_uuid_then_serial_then_lowest_mac() {
    let triple = [" Dell Inc. ", "PowerEdge R760", "ABC123"];
    let macs = ["52:54:00:00:00:02", "52:54:00:00:00:01"];
    assert_eq!(
        basis(&hardware("4c4c4544-0042-3010-8051-b4c04f4d3932", triple, &macs)),
        "uuid:4c4c4544-0042-3010-8051-b4c04f4d3932"
    );
    assert_eq!(
        basis(&hardware("ffffffff-ffff-ffff-ffff-ffffffffffff", triple, &macs)),
        "serial:dell inc.|poweredge r760|abc123"
    );
    let unfilled = ["Dell Inc.", "To Be Filled By O.E.M.", "ABC123"];
    assert_eq!(basis(&hardware("", unfilled, &macs)), "mac:52:54:00:00:00:01");
}

#[test]
fn denied_uuid_is_not_used_as_basis() {
    let machine =
        hardware("4c4c4544-0042-3010-8051-b4c04f4d3932", ["", "", ""], &["52:54:00:00:00:01"]);
    let deny = DenyList::from_iter(machine.uuid);
    assert_eq!(
        machine.basis(&deny).map(|b| b.to_string()),
        Some("mac:52:54:00:00:00:01".to_owned())
    );
}

#[test]
fn placeholder_serial_is_not_used_as_basis() {
    for serial in [
        "",
        "  ",
        "None",
        "Default string",
        "0",
        "0000000",
        "xxxx",
        "N/A",
        "System Serial Number",
        ".",
    ] {
        assert_eq!(
            hardware("", ["QEMU", "Standard PC", serial], &[]).basis(&DenyList::new()),
            None,
            "{serial:?}"
        );
    }
}

#[test]
fn hardware_without_identity_has_no_basis() {
    assert_eq!(Hardware::default().basis(&DenyList::new()), None);
}

proptest! {
    #[test]
    fn dhcp_ipxe_and_sysfs_yield_the_same_node_id(uuid: [u8; 16], mac: [u8; 6], others: Vec<[u8; 6]>) {
        let uuid = SystemUuid(uuid);
        prop_assume!(!uuid.is_placeholder());
        let dhcp = Hardware { uuid: SystemUuid::from_option97(&uuid.to_option97()), macs: vec![MacAddr(mac)], ..Hardware::default() };
        let ipxe = Hardware { uuid: uuid.to_string().parse().ok(), macs: vec![MacAddr(mac)], serial: "S".into(), ..Hardware::default() };
        let sysfs = Hardware {
            uuid: format!("{uuid}\n").to_uppercase().trim().parse().ok(),
            macs: others.into_iter().map(MacAddr).chain([MacAddr(mac)]).collect(),
            ..Hardware::default()
        };
        let ids = [dhcp, ipxe, sysfs].map(|view| view.basis(&DenyList::new()).map(|basis| basis.node_id()));
        prop_assert!(ids[0].is_some());
        prop_assert_eq!(ids[0], ids[1]);
        prop_assert_eq!(ids[1], ids[2]);
    }

    #[test]
    fn node_id_and_basis_round_trip_and_junk_never_panics(bytes: [u8; 5], text in "\\PC{0,40}", triple: [String; 3]) {
        let id = NodeId(bytes);
        prop_assert_eq!(id.to_string().parse(), Ok(id));
        prop_assert_eq!(id.to_string().len(), 8);
        let _ = text.parse::<NodeId>();
        let _ = text.parse::<Basis>();
        let [manufacturer, product, serial] = triple;
        let machine = Hardware { uuid: text.parse().ok(), manufacturer, product, serial, macs: vec![] };
        if let Some(basis) = machine.basis(&DenyList::new()) {
            prop_assert_eq!(basis.to_string().parse(), Ok(basis.clone()));
            prop_assert!(!basis.to_string().contains('\n'));
        }
    }
}
