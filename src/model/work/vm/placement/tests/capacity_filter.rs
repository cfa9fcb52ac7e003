//! CPUs, memory and huge pages of a node and of its NUMA nodes, and missing features.

use super::*;
use crate::work::{
    Placement, Vm,
    vm::placement::{
        allocations::Allocations,
        candidate::PlacementFit,
        fixtures::{GIB, candidate, choose_node, node_id, unit},
        reject_reason::NoPlacement,
    },
};
use meshd_proto::{Hosting, UnitFacts, vm::MAX_VMS};
use meshd_types::{SystemUuid, Timestamp};

/// Two NUMA nodes of 4 threads and 8 GiB; of the second one 4 GiB are huge pages.
fn hosting() -> Hosting {
    let numa = |id| NumaFacts { id, threads: 4, memory_kib: 8 << 20 };
    Hosting {
        qemu: true,
        qemu_img: true,
        numa: vec![numa(0), numa(1)],
        hugepages: vec![HugepageFacts { numa_node: Some(1), page_kib: 1 << 20, count: 4 }],
        ..Hosting::default()
    }
}

struct Node {
    number: u16,
    hosting: Option<Hosting>,
    units: Vec<UnitFacts>,
    allocations: Allocations,
}

impl Node {
    fn new(hosting: Option<Hosting>) -> Self {
        Node { number: 1, hosting, units: Vec::new(), allocations: Allocations::default() }
    }

    fn host(&self) -> CandidateNode<'_> {
        let hosting = self.hosting.as_ref();
        let threads = 8;
        let memory = 12 * GIB;
        let hugepages = 4 * GIB;
        let candidate = candidate(node_id(self.number), &self.units, &self.allocations);
        CandidateNode { hosting, threads, memory, hugepages, ..candidate }
    }

    fn fit(&self, request: &VmRequest) -> Result<PlacementFit, NoPlacement> {
        choose_node(request, None, [self.host()].into_iter())
    }

    /// Returns the reasons against the node, in order.
    fn rejections(&self, request: &VmRequest) -> Vec<&'static str> {
        let rejections = self.fit(request).err().into_iter().flat_map(|unfit| unfit.nearest);
        rejections
            .flat_map(|(_, rejections)| rejections)
            .map(|rejection| rejection.reason.as_str())
            .collect()
    }

    /// Places a VM on the node.
    fn take(&mut self, request: VmRequest) -> Vm {
        let fit = self.fit(&request).unwrap_or_else(|unfit| panic!("{unfit}"));
        let mut vm = Vm::new(request, None, Timestamp::EPOCH);
        vm.assign(
            Placement { node: fit.node, since: Timestamp::EPOCH, session: None },
            fit.assigned,
        );
        self.allocations.add(&vm);
        vm
    }
}

/// Returns a request; `more` contains further fields of its specification.
fn request(number: u16, vcpus: u32, memory: &str, more: &str) -> VmRequest {
    let [high, low] = number.to_be_bytes();
    let uuid = SystemUuid([9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, high, low]);
    let text = format!(
        r#"{{"name": "vm-{number}", "uuid": "{uuid}", "vcpus": {vcpus}, "memory": "{memory}"{more}}}"#
    );
    VmRequest::new(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}")))
}

fn with_units(mut request: VmRequest, units: usize) -> VmRequest {
    request.units.each = vec!["any".parse().expect("a selector"); units];
    request
}

const AT_1: &str = r#", "numa_node": 1"#;
const HUGE: &str = r#", "hugepages": true"#;

#[test]
fn vcpus_are_overcommitted_except_for_vms_with_dedicated_threads() {
    let mut node = Node::new(None);
    for number in 0..4 {
        node.take(request(number, 8, "64M", ""));
    }
    assert_eq!(
        node.rejections(&request(4, 1, "64M", "")),
        ["cpus_taken"],
        "32 on 8 threads are all"
    );
    assert_eq!(
        node.rejections(&request(4, 9, "64M", "")),
        ["cpus_exceeded"],
        "no machine has more than there are"
    );

    let mut node = Node::new(None);
    node.take(request(0, 6, "1G", HUGE));
    node.take(request(1, 5, "64M", ""));
    assert_eq!(
        node.rejections(&request(2, 1, "1G", HUGE)),
        ["cpus_taken"],
        "6 and, of 5 that share, 2"
    );
    assert_eq!(node.rejections(&request(2, 4, "64M", "")), ["cpus_taken"]);
    node.take(request(2, 3, "64M", ""));
    node.allocations.remove(request(0, 1, "1G", "").spec.uuid);
    node.take(request(0, 6, "1G", HUGE));
}

#[test]
fn node_with_more_free_threads_is_chosen() {
    let mut busy = Node::new(None);
    let mut idle = Node { number: 2, ..Node::new(None) };
    busy.take(request(0, 8, "64M", ""));
    idle.take(request(1, 1, "128M", ""));
    let fit = choose_node(&request(2, 1, "64M", ""), None, [busy.host(), idle.host()].into_iter())
        .expect("both have room");
    assert_eq!(fit.node, idle.host().node, "although it has less memory left");
}

#[test]
fn node_with_max_vms_is_full() {
    let mut node = Node::new(None);
    for number in 0..MAX_VMS {
        let vm = Vm::new(
            request(u16::try_from(number).expect("few"), 1, "16M", ""),
            None,
            Timestamp::EPOCH,
        );
        node.allocations.add(&vm);
    }
    assert!(node.rejections(&request(999, 1, "16M", "")).contains(&"full"));
}

#[test]
fn hugepages_are_counted_as_reported_by_the_node() {
    let mut node = Node::new(Some(hosting()));
    assert_eq!(
        node.rejections(&request(0, 1, "512M", HUGE)),
        ["hugepages_exceeded"],
        "no page of 1 GiB divides it"
    );
    assert_eq!(node.rejections(&request(0, 1, "5G", HUGE)), ["hugepages_exceeded"]);
    node.take(request(0, 1, "3G", HUGE));
    assert_eq!(node.rejections(&request(1, 1, "2G", HUGE)), ["hugepages_taken"]);
    assert_eq!(
        node.rejections(&request(1, 1, "1G", r#", "hugepages": true, "numa_node": 0"#)),
        ["hugepages_exceeded"]
    );
    assert_eq!(
        node.rejections(&request(1, 1, "2G", r#", "hugepages": true, "numa_node": 1"#)),
        ["hugepages_taken"]
    );
    node.take(request(1, 1, "1G", r#", "hugepages": true, "numa_node": 1"#));
    let none = Hosting { hugepages: Vec::new(), ..hosting() };
    assert_eq!(
        Node::new(Some(none)).rejections(&request(0, 1, "1G", HUGE)),
        ["hugepages_exceeded"],
        "it did not get them"
    );
    assert_eq!(
        Node::new(None).rejections(&request(0, 1, "1G", HUGE)),
        Vec::<&str>::new(),
        "unknown features reject no VM"
    );
}

#[test]
fn numa_node_limits_threads_and_memory_of_bound_vm() {
    let mut node = Node::new(Some(hosting()));
    assert_eq!(node.rejections(&request(0, 5, "1G", AT_1)), ["cpus_exceeded"]);
    assert_eq!(
        node.rejections(&request(0, 1, "4G", AT_1)),
        ["memory_exceeded"],
        "half of it are huge pages, and the node reserves some"
    );
    assert_eq!(node.rejections(&request(0, 1, "1G", r#", "numa_node": 2"#)), ["numa_missing"]);
    node.take(request(0, 3, "2G", AT_1));
    assert_eq!(node.rejections(&request(1, 2, "1G", AT_1)), ["cpus_taken"]);
    assert_eq!(node.rejections(&request(1, 1, "2G", AT_1)), ["memory_taken"]);
    node.take(request(2, 1, "4G", ""));
    assert_eq!(
        node.rejections(&request(1, 1, "1G", AT_1)),
        ["memory_taken"],
        "half of what is bound to none is reckoned to lie there"
    );
    node.take(request(1, 1, "1G", r#", "numa_node": 0"#));
}

#[test]
fn vm_is_bound_to_numa_node_of_its_units_if_capacity_allows() {
    let units = vec![unit(1, Some(0)), unit(2, Some(1)), unit(3, Some(1))];
    let node = || Node { units: units.clone(), ..Node::new(Some(hosting())) };
    let fit = |request: VmRequest| {
        node()
            .fit(&request)
            .map(|fit| (fit.assigned.numa_node, fit.assigned.numa_mismatch))
            .expect("there is room")
    };
    assert_eq!(fit(with_units(request(0, 2, "1G", ""), 1)), (Some(0), false));
    assert_eq!(
        fit(with_units(request(0, 2, "1G", ""), 2)),
        (Some(1), false),
        "two that are together"
    );
    assert_eq!(fit(with_units(request(0, 2, "1G", ""), 3)), (None, true));
    assert_eq!(fit(with_units(request(0, 5, "1G", ""), 1)), (None, false), "it has 4 threads");
    assert_eq!(fit(with_units(request(0, 2, "9G", ""), 1)), (None, false), "it has 8 GiB");
    assert_eq!(
        fit(VmRequest { numa_anywhere: true, ..with_units(request(0, 2, "1G", ""), 1) }),
        (None, false)
    );
    assert_eq!(
        fit(with_units(request(0, 2, "1G", AT_1), 1)),
        (None, false),
        "it requests a NUMA node"
    );
    assert_eq!(fit(with_units(request(0, 2, "1G", r#", "numa_node": 0"#), 2)), (None, true));
    let unreported = Node { hosting: None, ..node() };
    assert_eq!(
        unreported.fit(&with_units(request(0, 2, "1G", ""), 1)).map(|fit| fit.assigned.numa_node),
        Ok(None)
    );

    let mut vm = node().take(with_units(request(0, 2, "1G", ""), 2));
    assert_eq!((vm.numa_node(), vm.request.spec.numa_node), (Some(1), None));
    vm.unplace("its node went".to_owned());
    assert_eq!(vm.numa_node(), None, "the next node has others");
    let mut own = node().take(with_units(request(0, 2, "1G", AT_1), 1));
    own.unplace("its node went".to_owned());
    assert_eq!(own.numa_node(), Some(1), "the requested NUMA node stays");
}

#[test]
fn node_without_required_feature_is_rejected() {
    let has = Hosting {
        cpu_models: vec!["EPYC-Milan".to_owned()],
        bridges: vec!["br0".to_owned()],
        ..hosting()
    };
    let node = Node::new(Some(has.clone()));
    let nic = |bridge: &str| {
        format!(r#", "nics": [{{"mac": "52:54:00:00:00:01", "bridge": "{bridge}"}}]"#)
    };
    for (more, lack) in [
        (r#", "firmware": "uefi""#.to_owned(), "firmware_missing"),
        (r#", "firmware": "uefi", "secure_boot": true"#.to_owned(), "firmware_missing"),
        (r#", "vtpm": true"#.to_owned(), "tpm_missing"),
        (r#", "cpu": "EPIC""#.to_owned(), "cpu_unknown"),
        (nic("br1"), "bridge_missing"),
    ] {
        assert_eq!(node.rejections(&request(0, 1, "1G", &more)), [lack], "{more}");
        let unfit = node.fit(&request(0, 1, "1G", &more)).expect_err("it lacks it");
        assert_eq!(unfit.verdict.as_str(), "none");
        assert_eq!(
            Node::new(None).rejections(&request(0, 1, "1G", &more)),
            Vec::<&str>::new(),
            "unknown features reject no VM"
        );
    }
    for more in [
        String::new(),
        r#", "cpu": "max""#.to_owned(),
        r#", "cpu": "EPYC-Milan""#.to_owned(),
        nic("br0"),
    ] {
        assert_eq!(node.rejections(&request(0, 1, "1G", &more)), Vec::<&str>::new(), "{more}");
    }
    let volume = format!(
        r#", "volumes": [{{"name": "a", "format": "qcow2", "digest": "{}"}}]"#,
        "0".repeat(64)
    );
    let bare = |qemu, qemu_img| Node::new(Some(Hosting { qemu, qemu_img, ..has.clone() }));
    assert_eq!(bare(true, false).rejections(&request(0, 1, "1G", &volume)), ["qemu_missing"]);
    assert_eq!(bare(false, true).rejections(&request(0, 1, "1G", "")), ["qemu_missing"]);
    let all = Hosting { uefi: true, secure_boot: true, tpm: true, ..has };
    let secure = r#", "firmware": "uefi", "secure_boot": true, "vtpm": true"#;
    assert_eq!(Node::new(Some(all)).rejections(&request(0, 1, "1G", secure)), Vec::<&str>::new());
}
