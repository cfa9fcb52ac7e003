//! Suggests the fabric device and the idle disk nearest to each unit (GP-7). An operator approves a suggestion before anything is assigned.

use crate::{
    system::{self, Tree},
    vfio::needed_functions,
};
use meshd_proto::{DiskFacts, SlotFacts, UnitFacts, UnitKind};
use std::collections::{BTreeMap, BTreeSet};

/// A candidate device: name, location, NUMA node.
struct Near {
    name: String,
    way: Vec<String>,
    numa_node: Option<u32>,
}

/// Returns a suggestion for each unit. A disk is suggested once; a fabric device may be suggested several times.
pub fn candidates(tree: &Tree, units: &[UnitFacts], all: &[DiskFacts]) -> Vec<SlotFacts> {
    let mut idle: Vec<Near> =
        all.iter().filter(|disk| disk.blocked.is_none()).filter_map(|it| idle(tree, it)).collect();
    let fabric = fabric(tree);
    let devices = units.iter().filter(|unit| unit.kind == UnitKind::Device);
    let mut found = Vec::new();
    for unit in devices {
        let Some(first) = unit.members.first().map(|member| member.address.clone()) else { continue };
        let way = system::way(tree, &format!("/sys/bus/pci/devices/{first}"));
        let nearest = |of: &[Near]| {
            let far = |near: &Near| {
                (near.way.iter().zip(&way).take_while(|(a, b)| a == b).count(), near.numa_node == unit.numa_node)
            };
            // `max` returns the last of equals, so the search runs backwards to find the first.
            (0..of.len()).rev().max_by_key(|at| far(&of[*at]))
        };
        let disk = nearest(&idle).map(|at| idle.remove(at));
        let fabric = nearest(&fabric).map(|at| &fabric[at]);
        let mut mismatch = Vec::new();
        for (what, near) in [("disk", disk.as_ref()), ("fabric device", fabric)] {
            let Some(Near { name, numa_node: Some(theirs), .. }) = near else { continue };
            if let Some(ours) = unit.numa_node.filter(|ours| ours != theirs) {
                mismatch.push(format!("{what} {name} is on NUMA node {theirs}, the unit on {ours}"));
            }
        }
        found.push(SlotFacts {
            unit: first,
            numa_node: unit.numa_node,
            disk: disk.map(|disk| disk.name),
            fabric: fabric.map(|fabric| fabric.name.clone()),
            mismatch: mismatch.join("; "),
        });
    }
    found
}

fn idle(tree: &Tree, disk: &DiskFacts) -> Option<Near> {
    let function = disk.function.as_deref().unwrap_or_default();
    let way = system::way(tree, &format!("/sys/bus/pci/devices/{function}"));
    Some(Near { name: disk.identity()?.to_owned(), way, numa_node: disk.numa_node })
}

/// InfiniBand and RoCE functions that the node does not need.
fn fabric(tree: &Tree) -> Vec<Near> {
    let needed: BTreeMap<String, String> = needed_functions(tree);
    let devices = tree.list("/sys/class/infiniband").into_iter();
    let functions: BTreeSet<String> =
        devices.filter_map(|name| system::function_of(tree, &format!("/sys/class/infiniband/{name}/device"))).collect();
    let free = functions.into_iter().filter(|function| !needed.contains_key(function));
    let near = |name: String| {
        let folder = format!("/sys/bus/pci/devices/{name}");
        Near { way: system::way(tree, &folder), numa_node: tree.number(&format!("{folder}/numa_node")), name }
    };
    free.map(near).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use meshd_proto::PciFacts;

    /// Functions by their folder below `/sys/devices`, with their NUMA node.
    fn machine(functions: &[(&str, i32)]) -> Fake {
        let fake = Fake::new("", &[]);
        for (way, numa) in functions {
            let (_, address) = way.rsplit_once('/').expect("a way");
            fake.file(&format!("sys/devices/{way}/numa_node"), &format!("{numa}\n"));
            fake.link(&format!("sys/bus/pci/devices/{address}"), &format!("../../../devices/{way}"));
        }
        fake
    }

    fn unit(address: &str, numa_node: u32) -> UnitFacts {
        let members = vec![PciFacts { address: address.into(), ..PciFacts::default() }];
        UnitFacts { members, numa_node: Some(numa_node), ..UnitFacts::default() }
    }

    fn disk(wwid: &str, function: &str, numa_node: u32, blocked: Option<&str>) -> DiskFacts {
        DiskFacts {
            wwid: Some(wwid.into()),
            function: Some(function.into()),
            numa_node: Some(numa_node),
            blocked: blocked.map(str::to_owned),
            ..DiskFacts::default()
        }
    }

    #[test]
    fn a_unit_goes_with_what_hangs_nearest_and_another_numa_node_is_told() {
        let fake = machine(&[
            ("pci0000:00/0000:00:01.0/0000:01:00.0", 0),
            ("pci0000:00/0000:00:01.0/0000:02:00.0", 0),
            ("pci0000:00/0000:00:02.0/0000:03:00.0", 0),
            ("pci0000:80/0000:80:01.0/0000:81:00.0", 1),
            ("pci0000:80/0000:80:02.0/0000:82:00.0", 1),
        ]);
        fake.link("sys/class/infiniband/mlx5_0/device", "../../../devices/pci0000:80/0000:80:02.0/0000:82:00.0");
        let units = [unit("0000:01:00.0", 0), unit("0000:81:00.0", 1)];
        let disks = [
            disk("used", "0000:02:00.0", 0, Some("disk sda is mounted on /")),
            disk("far", "0000:03:00.0", 0, None),
            disk("near", "0000:02:00.0", 0, None),
        ];
        let found = candidates(&fake.tree, &units, &disks);
        let [first, second] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((first.unit.as_str(), first.disk.as_deref()), ("0000:01:00.0", Some("near")));
        assert_eq!(first.mismatch, "fabric device 0000:82:00.0 is on NUMA node 1, the unit on 0");
        assert_eq!((second.disk.as_deref(), second.fabric.as_deref()), (Some("far"), Some("0000:82:00.0")));
        assert_eq!(second.mismatch, "disk far is on NUMA node 0, the unit on 1");
        assert_eq!(first.fabric, second.fabric, "there is one: they exclude each other");
    }

    #[test]
    fn what_the_node_needs_is_no_slots_and_a_unit_alone_is_one() {
        let fake = machine(&[("pci0000:00/0000:00:01.0/0000:01:00.0", 0), ("pci0000:00/0000:00:01.0/0000:02:00.0", 0)]);
        let device = "../../../devices/pci0000:00/0000:00:01.0/0000:02:00.0";
        fake.link("sys/class/infiniband/mlx5_0/device", device);
        let found = candidates(&fake.tree, &[unit("0000:01:00.0", 0)], &[]);
        assert_eq!(found[0].fabric.as_deref(), Some("0000:02:00.0"));
        fake.interface("ib0", "52:54:00:00:00:02", "0000:00:01.0/0000:02:00.0");
        fake.file("proc/cmdline", "BOOTIF=01-52-54-00-00-00-02\n");
        let found = candidates(&fake.tree, &[unit("0000:01:00.0", 0)], &[]);
        assert_eq!(
            (found[0].fabric.as_deref(), found[0].disk.as_deref(), found[0].mismatch.as_str()),
            (None, None, "")
        );
    }
}
