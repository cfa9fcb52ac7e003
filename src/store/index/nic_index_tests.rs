//! Tests of the NIC index, and of changes that concern DHCP.

use super::*;
use crate::{Store, StoreError};
use meshd_config::vm::VmRequest;
use meshd_model::{
    fleet::{BootSession, Fingerprint, Node, Stage},
    work::VmDesiredState,
};
use meshd_proto::vm::{Nic, VmSpec};
use meshd_types::{Basis, BootSessionId, Timestamp};

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
    let lease = |number, of: u16| Lease {
        mac: mac(of),
        address: ip(number),
        expires_at: Timestamp::EPOCH,
        vm: Some(uuid(of)),
    };
    change(&store, |tx| {
        tx.put_vm(vm(1));
        tx.put_vm(vm(2));
        [lease(1, 1), lease(700, 1), lease(2, 2), lease(900, 9)]
            .into_iter()
            .for_each(|lease| tx.put_lease(lease));
    })
    .await;
    drop(store);
    let store = Store::open(dir.path()).expect("a store");
    let found = |mac, address| {
        store.read(|model| (model.vm_of_mac(mac).map(Vm::uuid), model.vm_at(address).map(Vm::uuid)))
    };
    assert_eq!(found(mac(1), ip(1)), (Some(uuid(1)), Some(uuid(1))));
    assert_eq!(found(mac(0x8001), ip(3)), (Some(uuid(1)), None));
    let count = |of: u16| store.read(|model| model.leases_of_vm(uuid(of)).count());
    let stale =
        store.read(|model| model.stale_leases().map(|lease| lease.address).collect::<Vec<_>>());
    assert_eq!((count(1), count(2), stale), (2, 1, vec![ip(900)]));
    change(&store, |tx| tx.remove_vm(uuid(1))).await;
    assert_eq!((found(mac(1), ip(1)), count(1), count(2)), ((None, None), 0, 1));
    let left: Vec<Ipv4Addr> =
        store.read(|model| model.leases().map(|lease| lease.address).collect());
    assert_eq!(left, [ip(2), ip(900)]);
}

#[tokio::test]
async fn changes_name_each_nic_and_removed_lease_since_a_revision() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = Store::open(dir.path()).expect("a store");
    let revision = || store.read(|model| model.dhcp_revision());
    let since = |revision| {
        store.read(|model| model.dhcp_record_changes_since(revision)).map(Vec::from_iter)
    };
    let nics = |of: &[u16]| {
        Some(of.iter().map(|number| DhcpRecordChange::Nic(mac(*number))).collect::<Vec<_>>())
    };
    change(&store, |tx| tx.put_vm(vm(1))).await;
    assert_eq!(since(0), nics(&[1, 0x8001]));
    let first = revision();
    // The state of the VM changes, its NICs do not.
    change(&store, |tx| tx.put_vm(Vm { desired_state: VmDesiredState::Run, ..vm(1) })).await;
    assert_eq!(since(first), Some(Vec::new()));
    let mut lease = Lease { mac: mac(7), address: ip(7), expires_at: Timestamp::EPOCH, vm: None };
    change(&store, |tx| tx.put_lease(lease.clone())).await;
    lease.mac = mac(8);
    change(&store, |tx| tx.put_lease(lease.clone())).await;
    assert_eq!(since(first), Some(Vec::new()), "the DHCP service itself grants leases");
    let address_of =
        |number| store.read(|model| model.lease_of_mac(mac(number)).map(|lease| lease.address));
    assert_eq!((address_of(7), address_of(8)), (None, Some(ip(7))));
    let session = BootSession::open(BootSessionId([1; 12]), mac(9), Stage::Dhcp, Timestamp::EPOCH);
    change(&store, |tx| tx.put_session(session)).await;
    change(&store, |tx| tx.remove_lease(ip(7))).await;
    let removed = DhcpRecordChange::LeaseRemoved { mac: mac(8), address: ip(7) };
    assert_eq!(since(first), Some(vec![DhcpRecordChange::Nic(mac(9)), removed]));
    let node =
        Node::discovered(Basis::Mac(mac(6)), Fingerprint::default(), mac(6), Timestamp::EPOCH);
    let before = revision();
    change(&store, |tx| tx.put_node(node)).await;
    assert_eq!(since(before), nics(&[6]));
    assert_eq!(store.read(|model| model.all_nics().len()), 4);
    change(&store, |tx| (2..40_000).for_each(|number| tx.put_vm(vm(number)))).await;
    assert_eq!(since(first), None, "too far behind");
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
