//! Suggests the fabric device and the idle disk nearest to each unit (GP-7). An operator approves a
//! suggestion before anything is assigned.

use crate::{
    system::{self, Tree},
    vfio::needed_functions,
};
use meshd_proto::{DiskFacts, SlotFacts, UnitFacts, UnitKind};
use std::collections::BTreeSet;

struct Candidate {
    name: String,
    /// PCI functions in the path, outermost first.
    path: Vec<String>,
    numa_node: Option<u32>,
}

/// Returns a suggestion for each unit. A disk is suggested once; a fabric device may be suggested
/// several times.
pub fn suggest(tree: &Tree, units: &[UnitFacts], disks: &[DiskFacts]) -> Vec<SlotFacts> {
    let idle = disks.iter().filter(|disk| disk.blocked.is_none());
    let mut disks: Vec<Candidate> = idle.filter_map(|disk| disk_candidate(tree, disk)).collect();
    let fabric = fabric_candidates(tree);
    let mut found = Vec::new();
    for unit in units.iter().filter(|unit| unit.kind == UnitKind::Device) {
        let Some(first) = unit.members.first().map(|member| member.address.clone()) else {
            continue;
        };
        let path = system::pci_path(tree, &format!("/sys/bus/pci/devices/{first}"));
        let nearest = |candidates: &[Candidate]| {
            let proximity = |candidate: &Candidate| {
                let common = candidate.path.iter().zip(&path).take_while(|(a, b)| a == b).count();
                (common, candidate.numa_node == unit.numa_node)
            };
            // `max_by_key` returns the last maximum; in reversed order that is the first candidate.
            (0..candidates.len()).rev().max_by_key(|index| proximity(&candidates[*index]))
        };
        let disk = nearest(&disks).map(|index| disks.remove(index));
        let fabric = nearest(&fabric).map(|index| &fabric[index]);
        let mut mismatch = Vec::new();
        for (kind, candidate) in [("disk", disk.as_ref()), ("fabric device", fabric)] {
            let Some(Candidate { name, numa_node: Some(other_node), .. }) = candidate else {
                continue;
            };
            if let Some(unit_node) = unit.numa_node.filter(|node| node != other_node) {
                mismatch.push(format!(
                    "{kind} {name} is on NUMA node {other_node}, the unit on {unit_node}"
                ));
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

fn disk_candidate(tree: &Tree, disk: &DiskFacts) -> Option<Candidate> {
    let function = disk.function.as_deref().unwrap_or_default();
    let path = system::pci_path(tree, &format!("/sys/bus/pci/devices/{function}"));
    Some(Candidate { name: disk.identity()?.to_owned(), path, numa_node: disk.numa_node })
}

/// Returns the InfiniBand and RoCE functions that the node does not need.
fn fabric_candidates(tree: &Tree) -> Vec<Candidate> {
    let needed = needed_functions(tree);
    let devices = tree.list("/sys/class/infiniband").into_iter();
    let functions: BTreeSet<String> = devices
        .filter_map(|name| {
            system::function_of(tree, &format!("/sys/class/infiniband/{name}/device"))
        })
        .collect();
    let free = functions.into_iter().filter(|function| !needed.contains_key(function));
    let candidate = |name: String| {
        let folder = format!("/sys/bus/pci/devices/{name}");
        let numa_node = tree.number(&format!("{folder}/numa_node"));
        Candidate { path: system::pci_path(tree, &folder), numa_node, name }
    };
    free.map(candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;
    use meshd_proto::PciFacts;

    /// Functions by their folder below `/sys/devices`, with their NUMA node.
    fn machine(functions: &[(&str, i32)]) -> FakeMachine {
        let fake = FakeMachine::new("", &[]);
        for (path, numa) in functions {
            let (_, address) = path.rsplit_once('/').expect("a path");
            fake.file(&format!("sys/devices/{path}/numa_node"), &format!("{numa}\n"));
            fake.link(
                &format!("sys/bus/pci/devices/{address}"),
                &format!("../../../devices/{path}"),
            );
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
    fn nearest_devices_are_suggested_and_numa_mismatch_is_reported() {
        let fake = machine(&[
            ("pci0000:00/0000:00:01.0/0000:01:00.0", 0),
            ("pci0000:00/0000:00:01.0/0000:02:00.0", 0),
            ("pci0000:00/0000:00:02.0/0000:03:00.0", 0),
            ("pci0000:80/0000:80:01.0/0000:81:00.0", 1),
            ("pci0000:80/0000:80:02.0/0000:82:00.0", 1),
        ]);
        fake.link(
            "sys/class/infiniband/mlx5_0/device",
            "../../../devices/pci0000:80/0000:80:02.0/0000:82:00.0",
        );
        let units = [unit("0000:01:00.0", 0), unit("0000:81:00.0", 1)];
        let disks = [
            disk("used", "0000:02:00.0", 0, Some("disk sda is mounted on /")),
            disk("far", "0000:03:00.0", 0, None),
            disk("near", "0000:02:00.0", 0, None),
        ];
        let found = suggest(&fake.tree, &units, &disks);
        let [first, second] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((first.unit.as_str(), first.disk.as_deref()), ("0000:01:00.0", Some("near")));
        assert_eq!(first.mismatch, "fabric device 0000:82:00.0 is on NUMA node 1, the unit on 0");
        assert_eq!(
            (second.disk.as_deref(), second.fabric.as_deref()),
            (Some("far"), Some("0000:82:00.0"))
        );
        assert_eq!(second.mismatch, "disk far is on NUMA node 0, the unit on 1");
        assert_eq!(first.fabric, second.fabric, "the only fabric device is suggested twice");
    }

    #[test]
    fn device_that_the_node_needs_is_not_suggested() {
        let fake = machine(&[
            ("pci0000:00/0000:00:01.0/0000:01:00.0", 0),
            ("pci0000:00/0000:00:01.0/0000:02:00.0", 0),
        ]);
        let device = "../../../devices/pci0000:00/0000:00:01.0/0000:02:00.0";
        fake.link("sys/class/infiniband/mlx5_0/device", device);
        let found = suggest(&fake.tree, &[unit("0000:01:00.0", 0)], &[]);
        assert_eq!(found[0].fabric.as_deref(), Some("0000:02:00.0"));
        fake.interface("ib0", "52:54:00:00:00:02", "0000:00:01.0/0000:02:00.0");
        fake.file("proc/cmdline", "BOOTIF=01-52-54-00-00-00-02\n");
        let found = suggest(&fake.tree, &[unit("0000:01:00.0", 0)], &[]);
        let [SlotFacts { fabric, disk, mismatch, .. }] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!((fabric, disk, mismatch.as_str()), (&None, &None, ""));
    }
}
