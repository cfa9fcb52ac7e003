//! What a node does with its address when its DHCP server falls silent, refuses it or changes it:
//! the script of the overlay `base`, called by BusyBox's client.

use crate::world::{World, eventually, write_program};
use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// The shortest lease that BusyBox's client takes as it is, in seconds.
const LEASE_S: u32 = 16;
/// What the server does: nothing, or refuse; anything else is the last byte of the address that it
/// gives.
const SILENT: u32 = 0;
const REFUSES: u32 = 255;

/// A DHCP server that a test tells what to do.
struct Server {
    does: Arc<AtomicU32>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(world: &World) -> Self {
        let socket = world.central.inside(listener).unwrap();
        let does = Arc::new(AtomicU32::new(SILENT));
        let is_over = Arc::new(AtomicBool::new(false));
        let doing = does.clone();
        let over = is_over.clone();
        let thread = std::thread::spawn(move || {
            let mut packet = [0; 2048];
            while !over.load(Ordering::Relaxed) {
                let Ok((length, _)) = socket.recv_from(&mut packet) else { continue };
                if let Some(answer) = answer(&packet[..length], doing.load(Ordering::Relaxed)) {
                    socket.send_to(&answer, (Ipv4Addr::BROADCAST, 68)).unwrap();
                }
            }
        });
        Server { does, is_over, thread: Some(thread) }
    }

    fn does(&self, what: u32) {
        self.does.store(what, Ordering::Relaxed);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn listener() -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    socket.bind_device(Some(b"br0")).unwrap();
    socket.set_broadcast(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 67)).into()).unwrap();
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    socket
}

/// OFFER, ACK or NAK (RFC 2131). Option 53 is the first one that BusyBox's client writes.
fn answer(packet: &[u8], does: u32) -> Option<Vec<u8>> {
    let kind = match (packet.get(240..243)?, does) {
        (_, SILENT) => return None,
        ([53, 1, 1], _) => 2,
        ([53, 1, 3], REFUSES) => 6,
        ([53, 1, 3], _) => 5,
        _ => return None,
    };
    let mut out = vec![0; 236];
    out[..4].copy_from_slice(&[2, 1, 6, 0]);
    out[4..8].copy_from_slice(&packet[4..8]);
    out[28..44].copy_from_slice(&packet[28..44]);
    if kind != 6 {
        out[16..20].copy_from_slice(&[10, 77, 0, u8::try_from(does).unwrap()]);
    }
    out.extend([99, 130, 83, 99, 53, 1, kind, 54, 4, 10, 77, 0, 1]);
    out.extend([51, 4].into_iter().chain(LEASE_S.to_be_bytes()));
    out.extend([1, 4, 255, 255, 255, 0, 255]);
    Some(out)
}

/// As Alpine's own script: `renew` replaces an address that is not right, `deconfig` takes it away.
const ALPINE: &str = r#"#!/bin/sh
case "$1" in
deconfig) ip -4 addr flush dev "$interface" ;;
renew)
	if ! ip -4 addr show dev "$interface" | grep -q "inet $ip/"; then
		ip -4 addr flush dev "$interface"
		ip -4 addr add "$ip/24" dev "$interface"
	fi
	;;
esac
"#;

/// The client of a node, with the script of its overlay.
struct Client<'a> {
    world: &'a World,
    child: Child,
}

impl<'a> Client<'a> {
    fn start(world: &'a World) -> Self {
        let place = |name: &str| world.path(name).display().to_string();
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/overlays/base/rootfs.alpine/usr/share/meshd/udhcpc"
        );
        let script = fs::read_to_string(script).unwrap();
        let script = script
            .replace("/usr/share/udhcpc/default.script", &place("alpine"))
            .replace("/run/", &place(""));
        let calls = format!(
            "#!/bin/sh\necho \"$1\" >>{}\nexec {} \"$@\"\n",
            place("calls"),
            place("script")
        );
        for (name, text) in [("alpine", ALPINE), ("script", &script), ("called", &calls)] {
            write_program(&world.path(name), text);
        }
        let mut command = Command::new("udhcpc");
        command.args(["-f", "-i", "eth0", "-t", "3", "-T", "1", "-A", "1", "-s", &place("called")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Client { world, child: world.nodes.spawn(&mut command).unwrap() }
    }

    /// How often udhcpc has called the script for this reason.
    fn calls(&self, reason: &str) -> usize {
        let calls = fs::read_to_string(self.world.path("calls")).unwrap_or_default();
        calls.lines().filter(|call| *call == reason).count()
    }

    fn is_called(&self, reason: &str, times: usize) {
        eventually(&format!("{reason}, {times} times"), || match self.calls(reason) {
            calls if calls >= times => Ok(()),
            calls => Err(format!("{calls}")),
        });
    }

    fn addresses(&self) -> Vec<String> {
        let args = ["-n", self.world.nodes.name(), "-o", "-4", "address", "show", "dev", "eth0"];
        let shown = Command::new("ip").args(args).output().unwrap();
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        text.lines()
            .filter_map(|line| Some(line.split("inet ").nth(1)?.split('/').next()?.to_owned()))
            .collect()
    }

    fn has(&self, expected: &[&str]) {
        eventually(&format!("the addresses are {expected:?}"), || match self.addresses() {
            found if found == expected => Ok(()),
            found => Err(format!("{found:?}")),
        });
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn node_address_outlives_its_lease_until_a_server_changes_or_refuses_it() {
    let world = World::prepared("auto");
    let server = Server::start(&world);
    server.does(50);
    let client = Client::start(&world);
    client.has(&["10.77.0.50"]);
    // The initramfs's address is not taken away as the client starts, and the lease's is not when
    // it ends.
    assert_eq!(client.calls("deconfig"), 1);
    server.does(SILENT);
    client.is_called("deconfig", 2);
    client.is_called("leasefail", 2);
    assert_eq!(client.addresses(), ["10.77.0.50"], "no server answers, and none said no");
    server.does(51);
    client.has(&["10.77.0.51"]);
    // A renewal that nobody answers is no reason either; one that is refused is.
    server.does(REFUSES);
    kill_process(Pid::from_child(&client.child), Signal::USR1).unwrap();
    client.has(&[]);
    server.does(52);
    client.has(&["10.77.0.52"]);
}

#[test]
fn kept_address_is_removed_when_server_refuses_it() {
    let world = World::prepared("auto");
    world.nodes.ip(&["address", "add", "10.77.0.50/24", "dev", "eth0"]).unwrap();
    let server = Server::start(&world);
    let client = Client::start(&world);
    client.is_called("leasefail", 1);
    client.has(&["10.77.0.50"]);
    server.does(REFUSES);
    client.is_called("nak", 1);
    client.has(&[]);
}
