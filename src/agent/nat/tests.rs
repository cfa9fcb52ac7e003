//! Assignment of addresses, and the whole network on a real kernel, in a network namespace.

use super::*;
use std::{net::SocketAddrV4, process::Command as StdCommand, time::Instant};

/// Set for the copy of this program that runs inside of the namespace.
const INSIDE: &str = "MESHD_NAT_INSIDE";
const NAME: &str = "nat::supervisor::tests::private_network_starts_serves_dhcp_and_repairs_only_missing_parts";

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
    let own = |assigned: &BTreeMap<MacAddr, Ipv4Addr>, nic: &Nic| assigned.get(&nic.mac).copied();
    let named = nic(1, Some("172.30.0.9"), Some(BRIDGE));
    let (any, other) = (nic(2, None, Some(BRIDGE)), nic(3, None, Some(BRIDGE)));
    let elsewhere = [nic(4, None, Some("br0")), nic(5, None, None), nic(6, Some("10.0.0.1"), Some(BRIDGE))];
    let all: Vec<Nic> = [named.clone(), any.clone()].into_iter().chain(elsewhere).collect();
    let assigned = assign_addresses(subnet, &all, &BTreeMap::new());
    assert_eq!((assigned.len(), own(&assigned, &named)), (2, named.address));
    let first = own(&assigned, &any).expect("an address");
    assert!(subnet.is_assignable(first) && Some(first) != named.address);
    assert_eq!(assign_addresses(subnet, &all, &BTreeMap::new()), assigned, "the same after a restart of the agent");
    let more = assign_addresses(subnet, &[other.clone(), any.clone()], &assigned);
    assert_eq!((own(&more, &any), own(&more, &named)), (Some(first), None));
    let wants = nic(7, Some(&first.to_string()), Some(BRIDGE));
    let stays = assign_addresses(subnet, &[wants.clone(), any.clone()], &more);
    assert_eq!((own(&stays, &wants), own(&stays, &any)), (None, Some(first)), "the guest of the other NIC uses it");
    let anew = assign_addresses(subnet, &[wants.clone(), any.clone()], &BTreeMap::new());
    assert_eq!(own(&anew, &wants), Some(first), "the address of a specification takes precedence");
    assert!(own(&anew, &any).is_some_and(|address| address != first));
    assert!(assign_addresses(subnet, &[], &stays).is_empty());
}

#[test]
fn surplus_nics_get_no_address_and_none_is_assigned_twice() {
    let subnet: Subnet = "172.30.0.0/29".parse().expect("a subnet");
    let nics: Vec<Nic> = (0..9).map(|last| nic(last, None, Some(BRIDGE))).collect();
    let assigned = assign_addresses(subnet, &nics, &BTreeMap::new());
    let addresses: std::collections::BTreeSet<_> = assigned.values().collect();
    assert_eq!((assigned.len(), addresses.len()), (5, 5));
}

fn run(program: &str, args: &[&str]) -> String {
    let ran = StdCommand::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let output = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{program} {args:?}: {output}");
    output
}

#[test]
fn private_network_starts_serves_dhcp_and_repairs_only_missing_parts() {
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        return runtime.block_on(inside());
    }
    let own = std::env::current_exe().expect("this program");
    let ran = StdCommand::new("unshare")
        .args(["--net", "--mount", "--"])
        .arg(own)
        .args([NAME, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare runs");
    let output = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && output.contains("1 passed"), "{output}");
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut polls = interval(Duration::from_millis(100));
    while !holds().await {
        assert!(Instant::now() < deadline, "{what}");
        polls.tick().await;
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

/// A host behind the node, without a route to the private network. Dropping the value removes it.
struct ExternalHost(std::process::Child);

const CENTRAL: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 99, 0, 1), 9);

impl ExternalHost {
    fn new() -> Self {
        let own = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net"));
        let mut child = StdCommand::new("unshare").args(["--net", "sleep", "900"]).spawn().expect("unshare runs");
        let (pid, here) = (child.id(), own(std::process::id()).expect("known"));
        let deadline = Instant::now() + Duration::from_secs(60);
        while own(pid).is_ok_and(|there| there == here) {
            assert!(child.try_wait().expect("known").is_none() && Instant::now() < deadline, "no other network");
            std::thread::yield_now();
        }
        let host = ExternalHost(child);
        let pid = pid.to_string();
        run("ip", &["link", "add", "up0", "type", "veth", "peer", "name", "down0", "netns", &pid]);
        run("ip", &["addr", "add", "10.99.0.2/24", "dev", "up0"]);
        run("ip", &["link", "set", "up0", "up"]);
        run("nsenter", &["-t", &pid, "-n", "ip", "addr", "add", "10.99.0.1/24", "dev", "down0"]);
        run("nsenter", &["-t", &pid, "-n", "ip", "link", "set", "down0", "up"]);
        host
    }
}

impl Drop for ExternalHost {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn inside() {
    run("mount", &["-t", "sysfs", "none", "/sys"]);
    run("ip", &["link", "set", "lo", "up"]);
    let tree = Tree::new(std::path::Path::new("/"));
    let settings: Settings =
        serde_json::from_str("{\"enabled\": true, \"pool\": \"172.30.0.0/16\"}").expect("as the overlay writes it");
    let _host = ExternalHost::new();
    let guest = nic(1, Some("172.30.0.9"), Some(BRIDGE));
    let (nics, receiver) = watch::channel(vec![guest.clone()]);
    let assigned = watch::Sender::new(BTreeMap::new());
    let start = || {
        let ip = ["/sbin/ip", "/usr/sbin/ip", "/bin/ip", "/usr/bin/ip"].map(PathBuf::from);
        let ip = ip.into_iter().find(|path| path.is_file()).expect("ip");
        let mut task = JoinSet::new();
        task.spawn(NatSupervisor::new(tree.clone(), settings.clone(), ip, receiver.clone(), assigned.clone()).run());
        task
    };
    let mut supervisor = start();
    let works = async || {
        let (tree, settings) = (tree.clone(), settings.clone());
        blocking(move || super::super::check(&tree, &settings, CENTRAL).is_ok()).await
    };
    until("it comes up", works).await;

    // A guest: a port on the bridge with a DHCP client.
    run("ip", &["link", "add", "tap0", "type", "veth", "peer", "name", "guest", "address", "52:54:00:00:00:01"]);
    run("ip", &["link", "set", "tap0", "master", BRIDGE, "up"]);
    run("ip", &["link", "set", "guest", "up"]);
    let client = || blocking(|| run("udhcpc", &["-i", "guest", "-n", "-q", "-f", "-t", "30", "-s", "/bin/true"]));
    assert!(client().await.contains("172.30.0.9"), "the reserved address");
    assert_eq!(assigned.borrow().get(&guest.mac).copied(), guest.address, "the VM manager receives the address");

    // One part is missing: the supervisor repairs it and leaves the bridge and its port unchanged.
    let index = || tree.text(&format!("/sys/class/net/{BRIDGE}/ifindex"));
    let before = index();
    supervisor.shutdown().await;
    masquerade::remove().expect("removed");
    let gateway = Ipv4Addr::new(172, 30, 0, 1);
    let leaves = || blocking(move || super::super::probe::connects(gateway, CENTRAL).map_err(|error| error.kind()));
    assert_eq!(leaves().await, Err(io::ErrorKind::TimedOut), "the external host has no route back");
    let failure = blocking({
        let (tree, settings) = (tree.clone(), settings.clone());
        move || super::super::check(&tree, &settings, CENTRAL)
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
    let refused = blocking(|| {
        let args = ["-i", "guest", "-n", "-q", "-f", "-t", "2", "-T", "1", "-s", "/bin/true"];
        StdCommand::new("udhcpc").args(args).status().expect("udhcpc runs").success()
    });
    assert!(!refused.await);
}
