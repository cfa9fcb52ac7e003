//! The ladder of a rule, with the real daemon.

use super::{Bench, order, seen_machine};
use crate::world::{World, dhcp::As};

#[test]
fn order_by_the_off_on_ladder_cycles_a_machine_whose_bmc_has_no_cycle() {
    let mut world = World::prepared("approve");
    let bench = Bench::new(&world);
    world.edit_site("[defaults]", &bench.sections("command", "ladder = \"off-on\""));
    world.start();
    let machine = seen_machine(&world, 1, "gpu001");
    bench.write(&format!("power-{}", machine.mac), "on\n");
    bench.write("answer-cycle", "exit 2\n");
    let (code, text) = order(&world, &["node", "power", "cycle", "--yes", "gpu001"], || {
        if bench.changes() == ["off", "on"] {
            machine.dhcp(As::Ipxe);
        }
    });
    assert!(code == Some(0) && text.contains("1 done"), "{text}");
    assert_eq!(bench.changes(), ["off", "on"]);
}
