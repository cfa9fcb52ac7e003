//! Assignment of addresses, and the whole network on a real kernel, in a network namespace.

use super::*;
use crate::fake::{FakeMachine, NetworkNamespace, in_namespace, run};
use socket2::{Domain, Socket, Type};
use std::{
    net::SocketAddrV4,
    process::{Command as StdCommand, Output},
    time::Instant,
};

const BRIDGE: &str = "mesh-nat0";

fn nic(last: u8, address: Option<&str>, bridge: Option<&str>) -> Nic {
    Nic {
        mac: MacAddr([0x52, 0x54, 0, 0, 0, last]),
        address: address.map(|text| text.parse().expect("an address")),
        bridge: bridge.map(|text| text.parse().expect("a name")),
        slot: false,
        peers: false,
    }
}

#[test]
fn nic_keeps_its_address_until_its_vm_is_released() {
    let subnet: Subnet = "172.30.0.0/24".parse().expect("a subnet");
    let address_of =
        |assigned: &BTreeMap<MacAddr, Ipv4Addr>, nic: &Nic| assigned.get(&nic.mac).copied();
    let fixed = nic(1, Some("172.30.0.9"), Some(BRIDGE));
    let dynamic = nic(2, None, Some(BRIDGE));
    let other = nic(3, None, Some(BRIDGE));
    let all = [fixed.clone(), dynamic.clone(), nic(6, Some("10.0.0.1"), Some(BRIDGE))];
    let assigned = assign_addresses(subnet, all.iter(), &BTreeMap::new());
    assert_eq!((assigned.len(), address_of(&assigned, &fixed)), (2, fixed.address));
    let first = address_of(&assigned, &dynamic).expect("an address");
    assert!(subnet.is_assignable(first) && Some(first) != fixed.address);
    assert_eq!(
        assign_addresses(subnet, all.iter(), &BTreeMap::new()),
        assigned,
        "the same after a restart of the agent"
    );
    let extended = assign_addresses(subnet, [other.clone(), dynamic.clone()].iter(), &assigned);
    assert_eq!(
        (address_of(&extended, &dynamic), address_of(&extended, &fixed)),
        (Some(first), None)
    );
    let conflicting = nic(7, Some(&first.to_string()), Some(BRIDGE));
    let updated =
        assign_addresses(subnet, [conflicting.clone(), dynamic.clone()].iter(), &extended);
    assert_eq!(
        (address_of(&updated, &conflicting), address_of(&updated, &dynamic)),
        (None, Some(first)),
        "the guest of the other NIC uses it"
    );
    let restarted =
        assign_addresses(subnet, [conflicting.clone(), dynamic.clone()].iter(), &BTreeMap::new());
    assert_eq!(
        address_of(&restarted, &conflicting),
        Some(first),
        "the address of a specification takes precedence"
    );
    assert!(address_of(&restarted, &dynamic).is_some_and(|address| address != first));
    assert!(assign_addresses(subnet, [].iter(), &updated).is_empty());
}

#[test]
fn surplus_nics_get_no_address_and_none_is_assigned_twice() {
    let subnet: Subnet = "172.30.0.0/29".parse().expect("a subnet");
    let nics: Vec<Nic> = (0..9).map(|last| nic(last, None, Some(BRIDGE))).collect();
    let assigned = assign_addresses(subnet, nics.iter(), &BTreeMap::new());
    let addresses: std::collections::BTreeSet<_> = assigned.values().collect();
    assert_eq!((assigned.len(), addresses.len()), (5, 5));
}

#[test]
fn network_of_another_root_is_left_unchanged() {
    let fake = FakeMachine::new("", &[]);
    fake.file("etc/meshd/nat.json", "{\"enabled\": true, \"pool\": \"172.30.0.0/16\"}");
    let nics = watch::channel(Vec::new()).1;
    let assigned = watch::Sender::new(BTreeMap::new());
    let central = CentralServices { address: *CENTRAL.ip(), ports: [8080, 8443] };
    assert!(start(&fake.tree, central, nics, assigned).is_empty());
}

#[test]
fn private_network_starts_serves_dhcp_and_repairs_only_missing_parts() {
    if in_namespace(
        "networks::supervisor::tests::private_network_starts_serves_dhcp_and_repairs_only_missing_parts",
    ) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(inside());
    }
}

async fn until(expectation: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut polls = interval(Duration::from_millis(100));
    while !condition().await {
        assert!(Instant::now() < deadline, "{expectation}");
        polls.tick().await;
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

const CENTRAL: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 99, 0, 1), 9);

/// A host behind the node, without a route to the private network.
fn external_host() -> NetworkNamespace {
    let host = NetworkNamespace::new();
    run(
        "ip",
        &["link", "add", "up0", "type", "veth", "peer", "name", "down0", "netns", &host.pid()],
    );
    run("ip", &["addr", "add", "10.99.0.2/24", "dev", "up0"]);
    run("ip", &["link", "set", "up0", "up"]);
    host.ip(&["addr", "add", "10.99.0.1/24", "dev", "down0"]);
    host.ip(&["link", "set", "down0", "up"]);
    host
}

fn udhcpc(retries: [&str; 4]) -> Output {
    let mut command = StdCommand::new("udhcpc");
    command
        .args(["-i", "guest", "-n", "-q", "-f", "-s", "/bin/true"])
        .args(retries)
        .output()
        .expect("udhcpc runs")
}

/// The DHCP client of the node, as that of systemd: it has the port on the node's own interface.
fn dhcp_client(interface: &str) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
    socket.bind_device(Some(interface.as_bytes())).expect("bound");
    let address = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, super::super::dhcp::CLIENT_PORT);
    socket.bind(&address.into()).expect("the port is free");
    socket
}

async fn inside() {
    let tree = Tree::new(std::path::Path::new("/"));
    let spec = NetworkSpec::private("172.30.0.0/16".parse().expect("a subnet"));
    let _host = external_host();
    let _client = dhcp_client("up0");
    let guest = nic(1, Some("172.30.0.9"), Some(BRIDGE));
    let others = [nic(4, None, Some("br0")), nic(5, None, None)];
    let (nics, receiver) = watch::channel([guest.clone()].into_iter().chain(others).collect());
    let assigned = watch::Sender::new(BTreeMap::new());
    let start = || spawn(tree.clone(), spec.clone(), receiver.clone(), assigned.clone());
    let mut supervisor = start();
    let works = async || {
        let tree = tree.clone();
        let spec = spec.clone();
        blocking(move || super::super::check(&tree, &spec, CENTRAL).is_ok()).await
    };
    until("it comes up", works).await;

    // A guest: a port on the bridge with a DHCP client.
    run(
        "ip",
        &[
            "link",
            "add",
            "tap0",
            "type",
            "veth",
            "peer",
            "name",
            "guest",
            "address",
            "52:54:00:00:00:01",
        ],
    );
    run("ip", &["link", "set", "tap0", "master", BRIDGE, "up"]);
    run("ip", &["link", "set", "guest", "up"]);
    let lease = blocking(|| udhcpc(["-t", "30", "-T", "3"])).await;
    assert!(
        lease.status.success()
            && String::from_utf8_lossy(&[lease.stdout, lease.stderr].concat())
                .contains("172.30.0.9")
    );
    let received = BTreeMap::from([(guest.mac, Ipv4Addr::new(172, 30, 0, 9))]);
    assert_eq!(
        *assigned.borrow(),
        received,
        "the VM manager receives the addresses of the network"
    );

    // One part is missing: the supervisor repairs it and leaves the bridge and its port unchanged.
    let index = || tree.text(&format!("/sys/class/net/{BRIDGE}/ifindex"));
    let before = index();
    supervisor.shutdown().await;
    masquerade::remove().expect("removed");
    let gateway = Ipv4Addr::new(172, 30, 0, 1);
    let leaves = || {
        blocking(move || {
            super::super::probe::connects(gateway, CENTRAL).map_err(|error| error.kind())
        })
    };
    assert_eq!(leaves().await, Err(io::ErrorKind::TimedOut), "the external host has no route back");
    let failure = blocking({
        let tree = tree.clone();
        let spec = spec.clone();
        move || super::super::check(&tree, &spec, CENTRAL)
    });
    assert!(failure.await.is_err_and(|error| error.ends_with("the masquerade rule")));
    supervisor = start();
    until("the rule is back", works).await;
    assert_eq!(leaves().await, Ok(()));
    assert_eq!(index(), before);
    assert!(tree.has(&format!("/sys/class/net/{BRIDGE}/brif/tap0")));

    // Every part is missing.
    run("ip", &["link", "del", BRIDGE]);
    until("the bridge is back", works).await;
    assert_ne!(index(), before);

    // The VM is released: DHCP no longer serves its MAC address.
    nics.send_replace(Vec::new());
    run("ip", &["link", "set", "tap0", "master", BRIDGE, "up"]);
    let _supervisor = supervisor;
    assert!(!blocking(|| udhcpc(["-t", "2", "-T", "1"])).await.status.success());
}
