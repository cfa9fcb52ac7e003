//! Machines that stand before their script: DHCP has opened their boot sessions.

use super::PORT;
use crate::frame::{CLIENT_INTERFACE, SERVER, Wire};
use anyhow::Context as _;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    path::PathBuf,
    time::{Duration, Instant},
};

/// How long all machines together may take to be answered.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two attempts of those that were not.
const RETRY: Duration = Duration::from_millis(500);

/// Writes the part of the load that chooses machines: each request is the next one's.
pub fn lua(wire: &Wire) -> anyhow::Result<PathBuf> {
    let path = wire.path("machines.lua");
    let query = query("%02x:%02x", "%04x");
    let text = format!(
        "local machine = 0\nrequest = function()\n  machine = (machine + 1) % {machines}\n  \
         return wrk.format(\"GET\", string.format(\"{query}\", math.floor(machine / 256), machine % 256, machine))\nend\n",
        machines = super::MACHINES,
    );
    fs::write(&path, text)?;
    Ok(path)
}

/// What iPXE asks for, of a machine by its number.
fn query(mac: &str, uuid: &str) -> String {
    format!(
        "/boot/script?mac=52:54:00:00:{mac}&uuid=4c010203-0405-0607-0809-0a0b0c0d{uuid}&arch=x86_64\
         &manufacturer_hex=51-45-4d-55&product_hex=62-65-6e-63-68&serial_hex=53-4e"
    )
}

/// One machine's script.
pub fn script(wire: &Wire, machine: u16) -> anyhow::Result<String> {
    let [high, low] = machine.to_be_bytes();
    let path = query(&format!("{high:02x}:{low:02x}"), &format!("{machine:04x}"));
    let answer = wire.client.inside(|| -> std::io::Result<String> {
        let mut stream = TcpStream::connect((SERVER, PORT))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {SERVER}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })??;
    let (_, body) = answer.split_once("\r\n\r\n").context("an answer")?;
    anyhow::ensure!(body.contains("/overlay/"), "machine {machine} is not booted: {body}");
    Ok(body.to_owned())
}

/// iPXE of every machine asks for its boot file, until each is answered.
pub fn power_on(wire: &Wire, count: u16) -> anyhow::Result<()> {
    wire.client.inside(|| ask(count))?.context("power on the machines")
}

fn ask(count: u16) -> anyhow::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.bind_device(Some(CLIENT_INTERFACE.as_bytes()))?;
    socket.set_broadcast(true)?;
    socket.set_recv_buffer_size(4 << 20)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 68)).into())?;
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(RETRY))?;
    let mut missing: BTreeSet<u16> = (0..count).collect();
    let end = Instant::now() + PATIENCE;
    while !missing.is_empty() {
        anyhow::ensure!(Instant::now() < end, "{} of {count} machines were not answered by DHCP", missing.len());
        // Few at once: the reply of each takes its place in a buffer.
        let some: Vec<u16> = missing.iter().take(64).copied().collect();
        for machine in &some {
            socket.send_to(&discover(*machine), (Ipv4Addr::BROADCAST, 67))?;
        }
        let mut buffer = [0; 2048];
        for _ in &some {
            match socket.recv(&mut buffer) {
                Ok(240..) => drop(missing.remove(&u16::from_be_bytes([buffer[6], buffer[7]]))),
                _ => break,
            }
        }
    }
    Ok(())
}

/// A DISCOVER of iPXE whose transaction ID ends in the machine's number.
fn discover(machine: u16) -> Vec<u8> {
    let [high, low] = machine.to_be_bytes();
    let mut packet = vec![0; 236];
    packet[..8].copy_from_slice(&[1, 1, 6, 0, 0x4d, 0x53, high, low]);
    packet[10] = 0x80;
    packet[28..34].copy_from_slice(&[0x52, 0x54, 0, 0, high, low]);
    packet.extend([99, 130, 83, 99, 53, 1, 1]);
    packet.extend([60, 32]);
    packet.extend(b"PXEClient:Arch:00000:UNDI:002001");
    packet.extend([77, 4]);
    packet.extend(b"iPXE");
    packet.extend([93, 2, 0, 0, 255]);
    packet
}
