//! Machines that stand before their script: DHCP has opened their boot sessions.
//!
//! They are behind a relay, beside another DHCP server: on a local segment meshd compares each
//! request with the neighbour entry of its address. Each says by DHCP which address it took.

use super::PORT;
use crate::frame::{CLIENT, SERVER, Wire};
use anyhow::Context as _;
use socket2::{Domain, Socket, Type};
use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

/// How long all machines together may take to be answered.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two attempts of those that were not.
const RETRY: Duration = Duration::from_millis(500);
/// Where the machines are.
const SUBNET: &str = "10.79.0.0/16";
/// The relay's address among them.
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
/// Who leases addresses there.
const OTHER_SERVER: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 3);

/// The segment of the machines, for the site file.
pub fn segment() -> String {
    format!("[[segment]]\nrelay = \"{RELAY}\"\naddress = \"{SERVER}\"\nmode = \"proxy\"\n")
}

/// Joins their subnet to the wire: the namespace of the load has all of its addresses.
pub fn attach(wire: &Wire) -> anyhow::Result<()> {
    wire.client.ip(&["route", "add", "local", SUBNET, "dev", "lo"])?;
    wire.server.ip(&["route", "add", SUBNET, "via", &CLIENT.to_string()])?;
    Ok(())
}

/// The script request of each machine, and its address.
pub fn requests(count: u16) -> Vec<(Ipv4Addr, String)> {
    (0..count).map(|machine| (address(machine), path(machine))).collect()
}

/// The address that another server leased to a machine.
fn address(machine: u16) -> Ipv4Addr {
    let [high, low] = machine.to_be_bytes();
    Ipv4Addr::new(10, 79, 16 + high, low)
}

/// What iPXE asks for.
fn path(machine: u16) -> String {
    let [high, low] = machine.to_be_bytes();
    format!(
        "/boot/script?mac=52:54:00:00:{high:02x}:{low:02x}&arch=x86_64\
         &uuid=4c010203-0405-0607-0809-0a0b0c0d{machine:04x}\
         &manufacturer_hex=51-45-4d-55&product_hex=62-65-6e-63-68&serial_hex=53-4e"
    )
}

/// One machine's script, as meshd answers it.
fn ask_script(machine: u16) -> std::io::Result<String> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddrV4::new(address(machine), 0).into())?;
    socket.connect(&SocketAddrV4::new(SERVER, PORT).into())?;
    let mut stream = TcpStream::from(socket);
    let path = path(machine);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {SERVER}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

/// iPXE of every machine asks for its boot file and takes its address, until each has its script.
/// Gives the first one's.
pub fn power_on(wire: &Wire, count: u16) -> anyhow::Result<String> {
    wire.client.inside(|| ask(count))?.context("power on the machines")
}

fn ask(count: u16) -> anyhow::Result<String> {
    let socket = UdpSocket::bind((RELAY, 67))?;
    socket.set_read_timeout(Some(RETRY))?;
    let mut missing = (0..count).collect::<BTreeSet<u16>>();
    let mut first = String::new();
    let mut last = String::new();
    let end = Instant::now() + PATIENCE;
    while !missing.is_empty() {
        anyhow::ensure!(
            Instant::now() < end,
            "{} of {count} machines have no script: {last}",
            missing.len()
        );
        // Few at once: the reply of each takes its place in a buffer.
        let some: Vec<u16> = missing.iter().take(64).copied().collect();
        for machine in &some {
            socket.send_to(&packet(*machine, 1, &[]), (SERVER, 67))?;
        }
        let mut buffer = [0; 2048];
        for _ in &some {
            if socket.recv(&mut buffer).is_err() {
                break;
            }
        }
        // What a machine says to the server that leases, the relay says to meshd too.
        for machine in &some {
            let chosen = [(50, address(*machine).octets()), (54, OTHER_SERVER.octets())];
            socket.send_to(&packet(*machine, 3, &chosen), (SERVER, 67))?;
        }
        for machine in some {
            let script = ask_script(machine)?;
            if script.contains("/overlay/") {
                missing.remove(&machine);
                first = if machine == 0 { script } else { first };
            } else {
                last = script;
            }
        }
    }
    Ok(first)
}

/// A DISCOVER (1) or REQUEST (3) of iPXE, as a relay passes it on; the transaction ID ends in the
/// machine's number.
fn packet(machine: u16, kind: u8, more: &[(u8, [u8; 4])]) -> Vec<u8> {
    let [high, low] = machine.to_be_bytes();
    let mut packet = vec![0; 236];
    packet[..8].copy_from_slice(&[1, 1, 6, 1, 0x4d, 0x53, high, low]);
    packet[24..28].copy_from_slice(&RELAY.octets());
    packet[28..34].copy_from_slice(&[0x52, 0x54, 0, 0, high, low]);
    packet.extend([99, 130, 83, 99, 53, 1, kind]);
    packet.extend([60, 32]);
    packet.extend(b"PXEClient:Arch:00000:UNDI:002001");
    packet.extend([77, 4]);
    packet.extend(b"iPXE");
    packet.extend([93, 2, 0, 0]);
    for (code, data) in more {
        packet.extend([*code, 4]);
        packet.extend(data);
    }
    packet.push(255);
    packet
}
