//! Who gets which address; and the whole network on a real kernel, in a namespace of its own.

use super::*;
use std::{net::SocketAddrV4, process::Command as StdCommand, time::Instant};

/// Set for the copy of this program that runs inside of the namespace.
const INSIDE: &str = "MESHD_NAT_INSIDE";
const NAME: &str =
    "nat::supervisor::tests::a_private_network_comes_up_answers_a_machine_and_is_mended_without_touching_what_is_there";

fn card(last: u8, address: Option<&str>, bridge: Option<&str>) -> Nic {
    Nic {
        mac: MacAddr([0x52, 0x54, 0, 0, 0, last]),
        address: address.map(|text| text.parse().expect("an address")),
        bridge: bridge.map(|text| text.parse().expect("a name")),
        slot: false,
        peers: false,
    }
}

#[test]
fn a_card_keeps_its_address_and_who_leaves_gives_it_back() {
    let subnet: Subnet = "172.30.0.0/24".parse().expect("a subnet");
    let own = |given: &BTreeMap<MacAddr, Ipv4Addr>, card: &Nic| given.get(&card.mac).copied();
    let named = card(1, Some("172.30.0.9"), Some(BRIDGE));
    let (any, other) = (card(2, None, Some(BRIDGE)), card(3, None, Some(BRIDGE)));
    let elsewhere = [card(4, None, Some("br0")), card(5, None, None), card(6, Some("10.0.0.1"), Some(BRIDGE))];
    let all: Vec<Nic> = [named.clone(), any.clone()].into_iter().chain(elsewhere).collect();
    let given = reserve(subnet, &all, &BTreeMap::new());
    assert_eq!((given.len(), own(&given, &named)), (2, named.address));
    let first = own(&given, &any).expect("an address");
    assert!(subnet.is_free(first) && Some(first) != named.address);
    assert_eq!(reserve(subnet, &all, &BTreeMap::new()), given, "the same after a restart of the agent");
    let more = reserve(subnet, &[other.clone(), any.clone()], &given);
    assert_eq!((own(&more, &any), own(&more, &named)), (Some(first), None));
    let wants = card(7, Some(&first.to_string()), Some(BRIDGE));
    let stays = reserve(subnet, &[wants.clone(), any.clone()], &more);
    assert_eq!((own(&stays, &wants), own(&stays, &any)), (None, Some(first)), "its guest uses it");
    let anew = reserve(subnet, &[wants.clone(), any.clone()], &BTreeMap::new());
    assert_eq!(own(&anew, &wants), Some(first), "who names an address has it");
    assert!(own(&anew, &any).is_some_and(|address| address != first));
    assert!(reserve(subnet, &[], &stays).is_empty());
}

#[test]
fn more_cards_than_addresses_leaves_some_without_and_gives_none_twice() {
    let subnet: Subnet = "172.30.0.0/29".parse().expect("a subnet");
    let cards: Vec<Nic> = (0..9).map(|last| card(last, None, Some(BRIDGE))).collect();
    let given = reserve(subnet, &cards, &BTreeMap::new());
    let addresses: std::collections::BTreeSet<_> = given.values().collect();
    assert_eq!((given.len(), addresses.len()), (5, 5));
}

fn run(program: &str, args: &[&str]) -> String {
    let ran = StdCommand::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{program} {args:?}: {said}");
    said
}

/// The namespace goes with the process that it was made for.
#[test]
fn a_private_network_comes_up_answers_a_machine_and_is_mended_without_touching_what_is_there() {
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
    let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(120);
    let mut looks = interval(Duration::from_millis(100));
    while !holds().await {
        assert!(Instant::now() < patience, "{what}");
        looks.tick().await;
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

/// Somebody beyond the node, who knows no way to the private network; gone with this value.
struct Beyond(std::process::Child);

const CENTRAL: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 99, 0, 1), 9);

impl Beyond {
    fn new() -> Self {
        let own = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net"));
        let mut child = StdCommand::new("unshare").args(["--net", "sleep", "900"]).spawn().expect("unshare runs");
        let (pid, here) = (child.id(), own(std::process::id()).expect("known"));
        let patience = Instant::now() + Duration::from_secs(60);
        while own(pid).is_ok_and(|there| there == here) {
            assert!(child.try_wait().expect("known").is_none() && Instant::now() < patience, "no other network");
            std::thread::yield_now();
        }
        let beyond = Beyond(child);
        let pid = pid.to_string();
        run("ip", &["link", "add", "up0", "type", "veth", "peer", "name", "down0", "netns", &pid]);
        run("ip", &["addr", "add", "10.99.0.2/24", "dev", "up0"]);
        run("ip", &["link", "set", "up0", "up"]);
        run("nsenter", &["-t", &pid, "-n", "ip", "addr", "add", "10.99.0.1/24", "dev", "down0"]);
        run("nsenter", &["-t", &pid, "-n", "ip", "link", "set", "down0", "up"]);
        beyond
    }
}

impl Drop for Beyond {
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
    let _beyond = Beyond::new();
    let guest = card(1, Some("172.30.0.9"), Some(BRIDGE));
    let (cards, told) = watch::channel(vec![guest.clone()]);
    let given = watch::Sender::new(BTreeMap::new());
    let keep = || {
        let ip = ["/sbin/ip", "/usr/sbin/ip", "/bin/ip", "/usr/bin/ip"].map(PathBuf::from);
        let ip = ip.into_iter().find(|place| place.is_file()).expect("ip");
        let mut task = JoinSet::new();
        task.spawn(NatSupervisor::new(tree.clone(), settings.clone(), ip, told.clone(), given.clone()).run());
        task
    };
    let mut kept = keep();
    let works = async || {
        let (tree, settings) = (tree.clone(), settings.clone());
        blocking(move || super::super::works(&tree, &settings, CENTRAL).is_ok()).await
    };
    until("it comes up", works).await;

    // A machine, as far as the network is concerned: a card on the bridge, and a client of DHCP behind it.
    run("ip", &["link", "add", "tap0", "type", "veth", "peer", "name", "guest", "address", "52:54:00:00:00:01"]);
    run("ip", &["link", "set", "tap0", "master", BRIDGE, "up"]);
    run("ip", &["link", "set", "guest", "up"]);
    let client = || blocking(|| run("udhcpc", &["-i", "guest", "-n", "-q", "-f", "-t", "30", "-s", "/bin/true"]));
    assert!(client().await.contains("172.30.0.9"), "its own address");
    assert_eq!(given.borrow().get(&guest.mac).copied(), guest.address, "and it is told");

    // One thing is gone: it is mended, and the bridge with its card is the one that it was.
    let index = || tree.text(&format!("/sys/class/net/{BRIDGE}/ifindex"));
    let before = index();
    kept.shutdown().await;
    masquerade::remove().expect("removed");
    let gateway = Ipv4Addr::new(172, 30, 0, 1);
    let leaves = || blocking(move || super::super::probe::leaves(gateway, CENTRAL).map_err(|error| error.kind()));
    assert_eq!(leaves().await, Err(io::ErrorKind::TimedOut), "nobody beyond knows the way back");
    let told_so = blocking({
        let (tree, settings) = (tree.clone(), settings.clone());
        move || super::super::works(&tree, &settings, CENTRAL)
    });
    assert!(told_so.await.is_err_and(|why| why.ends_with("the masquerade rule")));
    kept = keep();
    until("the rule is back", works).await;
    assert_eq!(leaves().await, Ok(()));
    assert_eq!(index(), before);
    assert!(tree.has(&format!("/sys/class/net/{BRIDGE}/brif/tap0")));

    // All of it is gone.
    run("ip", &["link", "del", BRIDGE]);
    until("the bridge is back", works).await;
    assert_ne!(index(), before);

    // The machine is released: nobody has its address any more.
    cards.send_replace(Vec::new());
    run("ip", &["link", "set", "tap0", "master", BRIDGE, "up"]);
    let _kept = kept;
    let refused = blocking(|| {
        let args = ["-i", "guest", "-n", "-q", "-f", "-t", "2", "-T", "1", "-s", "/bin/true"];
        StdCommand::new("udhcpc").args(args).status().expect("udhcpc runs").success()
    });
    assert!(!refused.await);
}
