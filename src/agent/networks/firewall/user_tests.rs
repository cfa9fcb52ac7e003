//! Programs of VMs and tasks in a network namespace: what reaches the central node in another one.

use super::*;
use crate::fake::{NetworkNamespace, in_namespace, run};
use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

const NODE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 10);
const CENTRAL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CENTRAL6: &str = "fd77::1";
const NODE6: &str = "fd77::10";
const SERVICES: CentralServices = CentralServices { address: CENTRAL, ports: [8080, 8443] };
const PEER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 51);
const VM_USER: u32 = user_ids::VMS.start + 5;
const TASK_USER: u32 = user_ids::TASKS.start;

/// Central node and an MPI peer: answers TCP and UDP on these ports.
const SERVER: &str = r#"
import selectors, socket, struct
ready = selectors.DefaultSelector()
four = ((socket.SOCK_DGRAM, (53, 67, 68, 69, 546, 547, 4011, 9999)), (socket.SOCK_STREAM, (53, 8080, 8443, 9999)))
six = ((socket.SOCK_DGRAM, (67, 69, 546, 547, 4011, 9999)),)
for family, kind, ports in [(socket.AF_INET, *kind) for kind in four] + [(socket.AF_INET6, *kind) for kind in six]:
    for port in ports:
        s = socket.socket(family, kind)
        if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        else: s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        s.bind(("" if family == socket.AF_INET6 else "0.0.0.0", port))
        if family == socket.AF_INET6 and port == 547:
            # All DHCPv6 relays and servers of the link.
            group = socket.inet_pton(family, "ff02::1:2") + struct.pack("@I", socket.if_nametoindex("eth"))
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
        if kind == socket.SOCK_STREAM: s.listen()
        ready.register(s, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _ in ready.select():
        s = key.fileobj
        if s.type == socket.SOCK_STREAM: s.accept()[0].close()
        else: s.sendto(b"answer", s.recvfrom(9000)[1])
"#;

/// Prints what answers, and whether a raw or packet socket can be opened. Asks all at once: each
/// that is blocked takes a second.
const CLIENT: &str = r#"
import concurrent.futures, socket, sys
central, peer, central6 = sys.argv[1:4]
def udp(host, port):
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    s.settimeout(1)
    s.sendto(b"x", (host, port))
    s.recvfrom(9)
def tcp(host, port):
    socket.create_connection((host, port), 1)
def mptcp(host, port):
    # Kernel sockets carry the packets of a socket of MPTCP.
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    s.settimeout(1)
    s.connect((host, port))
def answer(question):
    call, host, port = question
    try:
        call(host, port)
        return f"{call.__name__}:{host}:{port}"
    except OSError: pass
hosts = (central, "255.255.255.255", "10.77.0.255")
questions = [(udp, host, port) for host in hosts for port in (67, 68, 69, 546, 547, 4011)]
questions += [(udp, central, port) for port in (53, 9999)]
questions += [(tcp, central, port) for port in (53, 8080, 8443, 9999)]
questions += [(mptcp, central, port) for port in (8080, 8443)]
questions += [(udp, central6, port) for port in (67, 69, 546, 547, 4011, 9999)]
questions += [(udp, "ff02::1:2%eth0", 547), (udp, peer, 9999), (tcp, peer, 9999)]
with concurrent.futures.ThreadPoolExecutor(len(questions)) as threads:
    for line in threads.map(answer, questions):
        if line: print(line)
for kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW, 17)):
    try: socket.socket(*kind), print("raw")
    except OSError: pass
"#;

/// Waits for the first answer by IPv6: both ends configure their links.
const FIRST_ANSWER: &str = r#"
import socket, sys, time
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.settimeout(0.1)
end = time.monotonic() + 60
for host in (sys.argv[1], "ff02::1:2%eth0"):
    while True:
        try:
            s.sendto(b"x", (host, 547))
            s.recvfrom(9)
            break
        except OSError:
            if time.monotonic() > end: raise
"#;

struct Network {
    _central: NetworkNamespace,
    server: Child,
}

impl Network {
    fn new() -> Self {
        let central = NetworkNamespace::new();
        run(
            "ip",
            &[
                "link",
                "add",
                "eth0",
                "type",
                "veth",
                "peer",
                "name",
                "eth",
                "netns",
                &central.pid(),
            ],
        );
        run("ip", &["addr", "add", &format!("{NODE}/24"), "broadcast", "+", "dev", "eth0"]);
        run("ip", &["link", "set", "eth0", "up"]);
        run("ip", &["route", "add", "default", "dev", "eth0"]);
        run("ip", &["addr", "add", &format!("{NODE6}/64"), "dev", "eth0", "nodad"]);
        central.ip(&["addr", "add", &format!("{CENTRAL6}/64"), "dev", "eth", "nodad"]);
        for address in [CENTRAL, PEER] {
            central.ip(&["addr", "add", &format!("{address}/24"), "broadcast", "+", "dev", "eth"]);
        }
        central.ip(&["link", "set", "eth", "up"]);
        let mut server = Command::new("nsenter");
        server.args(["-t", &central.pid(), "-n", "python3", "-c", SERVER]).stdout(Stdio::piped());
        let mut server = server.spawn().expect("python3 starts");
        let mut line = String::new();
        BufReader::new(server.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("readable");
        assert_eq!(line, "ready\n");
        run("python3", &["-c", FIRST_ANSWER, CENTRAL6]);
        Network { _central: central, server }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.server.kill().and_then(|()| self.server.wait());
    }
}

/// Returns what a user of this node reaches.
fn reached(user: u32) -> Vec<String> {
    let mut client = Command::new("setpriv");
    client.args([
        "--reuid",
        &user.to_string(),
        "--regid",
        &user.to_string(),
        "--clear-groups",
        "--no-new-privs",
    ]);
    // A namespace of users gives capabilities for other networks alone.
    client.args([
        "/usr/bin/python3",
        "-c",
        CLIENT,
        &CENTRAL.to_string(),
        &PEER.to_string(),
        CENTRAL6,
    ]);
    let output = client.output().expect("setpriv runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
}

fn is_in_namespace(test: &str) -> bool {
    in_namespace(&format!("networks::firewall::user::tests::{test}"))
}

#[test]
fn programs_of_vm_users_have_no_network() {
    if !is_in_namespace("programs_of_vm_users_have_no_network") {
        return;
    }
    let _network = Network::new();
    let before = reached(VM_USER);
    assert!(
        ["udp:10.77.0.1:67", "tcp:10.77.0.51:9999"]
            .iter()
            .all(|name| before.iter().any(|all| all == name))
    );
    UserFirewall::of_vms().ensure().expect("the kernel does it");
    assert_eq!(reached(VM_USER), Vec::<String>::new());
    assert!(reached(0).len() > before.len(), "the node itself has, with raw sockets");
    assert_eq!(reached(TASK_USER), before, "other users have");
}

#[test]
fn task_users_reach_peers_but_no_boot_service_of_central_node() {
    if !is_in_namespace("task_users_reach_peers_but_no_boot_service_of_central_node") {
        return;
    }
    let _network = Network::new();
    let before = reached(TASK_USER);
    for name in [
        "udp:10.77.0.1:67",
        "udp:10.77.0.1:68",
        "udp:255.255.255.255:67",
        "udp:10.77.0.1:4011",
        "tcp:10.77.0.1:8443",
        "mptcp:10.77.0.1:8080",
        "udp:fd77::1:546",
        "udp:fd77::1:547",
        "udp:ff02::1:2%eth0:547",
    ] {
        assert!(
            before.iter().any(|reached| reached == name),
            "nothing is filtered yet: {name} of {before:?}"
        );
    }
    let central = ["udp:10.77.0.1:53", "tcp:10.77.0.1:53"];
    let peers = ["udp:10.77.0.51:9999", "tcp:10.77.0.51:9999", "udp:fd77::1:9999"];
    let others = ["udp:10.77.0.1:9999", "tcp:10.77.0.1:9999"];
    UserFirewall::of_tasks(SERVICES).ensure().expect("the kernel does it");
    let allowed: BTreeSet<&str> = central.iter().chain(&peers).chain(&others).copied().collect();
    for user in [TASK_USER, MIN_UID, u32::MAX - 1] {
        assert_eq!(
            reached(user).iter().map(String::as_str).collect::<BTreeSet<_>>(),
            allowed,
            "{user}"
        );
    }
    assert_eq!(reached(MIN_UID - 1), before, "services of the node are not tasks");
}

/// Sends to port 67 from port 68, as a DHCP client of the node, and asks for a script.
const CONTAINER: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", 68))
s.settimeout(1)
try:
    s.sendto(b"x", (sys.argv[1], 67))
    s.recvfrom(9)
    print("dhcp")
except OSError: pass
"#;

#[test]
fn containers_reach_no_boot_service_of_central_node_through_their_node() {
    if !is_in_namespace("containers_reach_no_boot_service_of_central_node_through_their_node") {
        return;
    }
    let _network = Network::new();
    let container = NetworkNamespace::new();
    run(
        "ip",
        &["link", "add", "cni0", "type", "veth", "peer", "name", "eth", "netns", &container.pid()],
    );
    run("ip", &["addr", "add", "10.42.0.1/24", "dev", "cni0"]);
    run("ip", &["link", "set", "cni0", "up"]);
    container.ip(&["addr", "add", "10.42.0.2/24", "dev", "eth"]);
    container.ip(&["link", "set", "eth", "up"]);
    container.ip(&["route", "add", "default", "via", "10.42.0.1"]);
    run("sysctl", &["-qw", "net.ipv4.ip_forward=1"]);
    run("nft", &["add", "table", "ip", "cni"]);
    run(
        "nft",
        &["add", "chain", "ip", "cni", "nat", "{ type nat hook postrouting priority 100; }"],
    );
    run("nft", &["add", "rule", "ip", "cni", "nat", "ip", "saddr", "10.42.0.0/24", "masquerade"]);
    let reached = || {
        let python = |script: &str| {
            let python = [
                "-t",
                &container.pid(),
                "-n",
                "python3",
                "-c",
                script,
                &CENTRAL.to_string(),
                &PEER.to_string(),
                CENTRAL6,
            ];
            run("nsenter", &python)
        };
        let found = [python(CONTAINER), python(CLIENT)].concat();
        found
            .split_whitespace()
            .filter(|name| *name != "raw")
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let before = reached();
    for name in ["dhcp", "udp:10.77.0.1:4011", "tcp:10.77.0.1:8080", "tcp:10.77.0.51:9999"] {
        assert!(
            before.iter().any(|reached| reached == name),
            "nothing is filtered yet: {name} of {before:?}"
        );
    }
    // The peer answers UDP from another address, which is not masqueraded back.
    UserFirewall::of_tasks(SERVICES).ensure().expect("the kernel does it");
    let all = [
        "udp:10.77.0.1:53",
        "udp:10.77.0.1:9999",
        "tcp:10.77.0.1:53",
        "tcp:10.77.0.1:9999",
        "tcp:10.77.0.51:9999",
    ];
    assert_eq!(reached(), all);
}

#[test]
fn changed_firewall_is_detected_and_repaired() {
    if !is_in_namespace("changed_firewall_is_detected_and_repaired") {
        return;
    }
    let firewalls = UserFirewall::all(SERVICES);
    let are_current =
        || firewalls.each_ref().map(|firewall| firewall.is_current().expect("readable"));
    assert_eq!(are_current(), [false, false]);
    let ensure = || firewalls.iter().try_for_each(UserFirewall::ensure);
    ensure().expect("the kernel does it");
    assert_eq!(are_current(), [true, true]);
    run("nft", &["flush", "table", "inet", "meshd-vm-users"]);
    run("nft", &["delete", "table", "inet", "meshd-task-users"]);
    assert_eq!(are_current(), [false, false]);
    ensure().expect("repaired");
    assert_eq!(are_current(), [true, true]);
    let other = CentralServices { address: PEER, ..SERVICES };
    assert!(!UserFirewall::of_tasks(other).is_current().expect("readable"), "another central node");
}
