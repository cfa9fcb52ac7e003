//! A stranger on the boot network who knows a machine's UUID, serial and MAC: no capability, no token, and an alarm each time.

use crate::world::{World, dhcp::As, node::PxeNode};

/// The stranger's address on the node's side of the wire; the machine's own is leased.
const STRANGER: &str = "10.77.0.66";

/// The node's side of the wire has this address, and no other.
fn move_to(world: &World, address: &str) {
    world.nodes.ip(&["address", "flush", "dev", "eth0"]).unwrap();
    world.nodes.ip(&["address", "add", &format!("{address}/24"), "dev", "eth0"]).unwrap();
}

/// Asks for the machine's script as if from another machine: the wire's other side then has only the stranger's address.
fn ask_as_stranger(world: &World, machine: &PxeNode<'_>, alarms: usize) {
    move_to(world, STRANGER);
    let answer = machine.get(&machine.script_url()).unwrap().text();
    assert!(answer.starts_with("#!ipxe"), "even a stranger is answered in iPXE");
    assert!(!answer.contains("/overlay/"), "no capability: {answer}");
    assert_eq!(world.events("boot_impersonated").len(), alarms, "an alarm each time");
    world.nodes.ip(&["address", "flush", "dev", "eth0"]).unwrap();
}

#[test]
fn a_stranger_with_the_right_uuid_serial_and_mac_gets_nothing_before_during_and_after_a_boot() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    ask_as_stranger(&world, &machine, 1);

    let script = machine.power_on().unwrap();
    ask_as_stranger(&world, &machine, 2);
    machine.dhcp(As::Os);

    let overlay = machine.load(&script).unwrap();
    let _agent = machine.start_agent(&overlay);
    world.wait_for_phase("online");
    ask_as_stranger(&world, &machine, 3);
    machine.dhcp(As::Os);
    world.wait_for_phase("online");
}

#[test]
fn an_overlay_is_given_once_to_its_machine_and_to_nobody_else() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let script = machine.power_on().unwrap();
    let url = script.overlay().expect("a capability");

    move_to(&world, STRANGER);
    assert_eq!(machine.get(&url).unwrap().status, 404, "a capability from another address does not exist");
    assert_eq!(world.events("capability_replayed").len(), 1);
    world.nodes.ip(&["address", "flush", "dev", "eth0"]).unwrap();
    machine.dhcp(As::Os);

    assert_eq!(machine.head(&url).unwrap().status, 200);
    assert_eq!(machine.head(&url).unwrap().status, 200, "HEAD never consumes it");
    assert_eq!(machine.get(&url).unwrap().status, 200);
    assert_eq!(machine.get(&url).unwrap().status, 410, "it is spent");
    assert_eq!(world.events("capability_replayed").len(), 2);
    let invented = format!("http://10.77.0.1:8080/overlay/{}/overlay.cpio.gz", "0".repeat(32));
    assert_eq!(machine.get(&invented).unwrap().status, 404);
}

#[test]
fn planes_do_not_reach_each_other() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    machine.power_on().unwrap();
    for path in ["v1/nodes", "v1/enrol", "v1/link", "v1/events", "../state/ca/ca.key", "blob/../../etc/passwd/kernel"] {
        assert_eq!(machine.get(&format!("http://10.77.0.1:8080/{path}")).unwrap().status, 404, "{path}");
    }
}
