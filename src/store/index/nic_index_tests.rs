//! Tests of the NIC index, including incremental scans.

use super::*;
use crate::{Store, StoreError};
use meshd_config::vm::VmRequest;
use meshd_model::work::VmDesiredState;
use meshd_proto::vm::{Nic, VmSpec};
use meshd_types::Timestamp;

fn uuid(number: u16) -> SystemUuid {
    let [high, low] = number.to_be_bytes();
    SystemUuid([8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, high, low])
}

fn mac(number: u16) -> MacAddr {
    let [high, low] = number.to_be_bytes();
    MacAddr([2, 0, 0, 0, high, low])
}

fn ip(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 9, high, low)
}

/// A VM with one NIC on a bridge of the site and one with the same address on a bridge of its node.
fn vm(number: u16) -> Vm {
    let mut spec = VmSpec::unknown(format!("vm-{number}").parse().expect("a name"), uuid(number));
    let nic = |mac, bridge: &str| Nic {
        mac,
        address: Some(ip(number)),
        bridge: bridge.parse().ok(),
        slot: false,
        peers: false,
    };
    spec.nics = vec![nic(mac(number), "br0"), nic(mac(number | 0x8000), "mesh-nat0")];
    Vm::new(VmRequest::new(spec), None, Timestamp::EPOCH)
}

async fn change(store: &Store, change: impl FnOnce(&mut Tx<'_>)) {
    let done = store.commit(|tx| {
        change(tx);
        Ok::<_, StoreError>(())
    });
    done.await.expect("stored");
}

#[tokio::test]
async fn nics_of_a_vm_are_found_until_its_record_and_leases_are_removed() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = Store::open(dir.path()).expect("a store");
    let lease =
        |number, of: u16| Lease { mac: mac(of), address: ip(number), expires_at: Timestamp::EPOCH, vm: Some(uuid(of)) };
    change(&store, |tx| {
        tx.put_vm(vm(1));
        tx.put_vm(vm(2));
        [lease(1, 1), lease(700, 1), lease(2, 2), lease(900, 9)].into_iter().for_each(|lease| tx.put_lease(lease));
    })
    .await;
    drop(store);
    let store = Store::open(dir.path()).expect("a store");
    let found =
        |mac, address| store.read(|model| (model.vm_of_mac(mac).map(Vm::uuid), model.vm_at(address).map(Vm::uuid)));
    assert_eq!(found(mac(1), ip(1)), (Some(uuid(1)), Some(uuid(1))));
    assert_eq!(found(mac(0x8001), ip(3)), (Some(uuid(1)), None));
    let count = |of: u16| store.read(|model| model.leases_of_vm(uuid(of)).count());
    let stale = store.read(|model| model.stale_leases().map(|lease| lease.address).collect::<Vec<_>>());
    assert_eq!((count(1), count(2), stale), (2, 1, vec![ip(900)]));
    change(&store, |tx| tx.remove_vm(uuid(1))).await;
    assert_eq!((found(mac(1), ip(1)), count(1), count(2)), ((None, None), 0, 1));
    let left: Vec<Ipv4Addr> = store.read(|model| model.leases().map(|lease| lease.address).collect());
    assert_eq!(left, [ip(2), ip(900)]);
}

#[tokio::test]
async fn incremental_scan_reports_exactly_the_changed_nics() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = Store::open(dir.path()).expect("a store");
    let changes_since = |revision| store.read(|model| (model.nic_revision(), model.vm_nics_since(revision)));
    change(&store, |tx| tx.put_vm(vm(1))).await;
    let (revision, NicChanges::All(all)) = changes_since(None) else { panic!("no revision is known") };
    assert_eq!(
        all.iter().map(|nic| (nic.mac, nic.address)).collect::<Vec<_>>(),
        [(mac(1), Some(ip(1))), (mac(0x8001), None)]
    );
    // The state of the VM changes, its NICs do not.
    change(&store, |tx| tx.put_vm(Vm { desired_state: VmDesiredState::Run, ..vm(1) })).await;
    assert_eq!(changes_since(Some(revision)), (revision, NicChanges::Changed(Vec::new())));
    change(&store, |tx| tx.put_vm(vm(2))).await;
    change(&store, |tx| tx.remove_vm(uuid(1))).await;
    let (_, NicChanges::Changed(changed)) = changes_since(Some(revision)) else { panic!("it is not far behind") };
    let there: Vec<(MacAddr, bool)> = changed.iter().map(|(mac, nic)| (*mac, nic.is_some())).collect();
    assert_eq!(there, [(mac(1), false), (mac(2), true), (mac(0x8001), false), (mac(0x8002), true)]);
    change(&store, |tx| (3..3000).for_each(|number| tx.put_vm(vm(number)))).await;
    assert!(
        matches!(changes_since(Some(revision)).1, NicChanges::All(all) if all.len() == 2 * 2998),
        "all NICs are reported"
    );
}

#[tokio::test]
async fn next_free_address_is_found_and_shared_addresses_stay_taken() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = Store::open(dir.path()).expect("a store");
    change(&store, |tx| (1..20_000).for_each(|number| tx.put_vm(vm(number)))).await;
    let next = |from| store.read(|model| model.next_free_of_vms(from));
    assert_eq!((next(ip(0)), next(ip(1))), (Some(ip(0)), Some(ip(20_000))));
    change(&store, |tx| tx.remove_vm(uuid(777))).await;
    assert_eq!((next(ip(1)), next(ip(778))), (Some(ip(777)), Some(ip(20_000))));
    let mut duplicate = vm(20_001);
    duplicate.request.spec.nics = vm(5).request.spec.nics;
    change(&store, |tx| tx.put_vm(duplicate)).await;
    assert_eq!(store.read(|model| model.vm_of_mac(mac(5)).map(Vm::uuid)), Some(uuid(5)));
    change(&store, |tx| tx.remove_vm(uuid(5))).await;
    assert_eq!(
        (next(ip(5)), store.read(|model| model.vm_at(ip(5)).map(Vm::uuid))),
        (Some(ip(777)), Some(uuid(20_001)))
    );
}
