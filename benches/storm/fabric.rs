//! The network that the machines stand in: a subnet behind a relay, each machine with an address of
//! its own.
//!
//! The server sees one neighbour, the relay, which is what a hall of racks looks like; thousands of
//! neighbours on one wire would overflow the kernel's table. Every address of the subnet belongs to
//! the machines' namespace, so that sockets can be bound to it.

use crate::{
    dhcp::{DISCOVER, OFFER, option},
    frame::{CLIENT, CLIENT_INTERFACE, SERVER, Wire},
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    net::{TcpSocket, TcpStream, UdpSocket},
    sync::oneshot,
    time::timeout,
};

/// Where the machines are.
pub const SUBNET: &str = "10.80.0.0/16";
/// The relay's address among them.
pub const RELAY: Ipv4Addr = Ipv4Addr::new(10, 80, 0, 1);
/// What the server leases.
pub const RANGE: &str = "10.80.1.0-10.80.255.250";
/// Receive buffer of the relay, in bytes: answers to thousands of machines come in bursts.
const RELAY_BUFFER: usize = 16 << 20;
/// How long a connection may take; the kernel asks again after 1, 3 and 7 seconds.
const CONNECT: Duration = Duration::from_secs(20);

/// Joins the subnet to the wire.
pub fn attach(wire: &Wire) -> anyhow::Result<()> {
    wire.client.ip(&["route", "add", "local", SUBNET, "dev", "lo"])?;
    wire.client.ip(&["address", "add", &format!("{RELAY}/32"), "dev", CLIENT_INTERFACE])?;
    wire.server.ip(&["route", "add", SUBNET, "via", &CLIENT.to_string()])?;
    Ok(())
}

/// The relay, and the answers that machines wait for.
pub struct Fabric {
    relay: UdpSocket,
    waiting: Mutex<HashMap<Awaited, oneshot::Sender<Vec<u8>>>>,
}

/// A transaction ID, and whether an offer is waited for or the answer to a request: an offer that
/// comes late is no answer to the request that followed the first one.
type Awaited = (u32, bool);

impl Fabric {
    /// Opens the relay; call it in the machines' namespace.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RELAY_BUFFER)?;
        socket.bind(&SocketAddr::from((RELAY, 67)).into())?;
        Ok(Fabric { relay: UdpSocket::from_std(socket.into())?, waiting: Mutex::default() })
    }

    /// Hands answers to those who wait for them, for ever.
    pub async fn relay(&self) -> io::Result<()> {
        let mut packet = [0; 2048];
        loop {
            let (length, _) = self.relay.recv_from(&mut packet).await?;
            let Some(awaited) = awaited(&packet[..length], OFFER) else { continue };
            let waiter =
                self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&awaited);
            if let Some(waiter) = waiter {
                // Whoever gave up meanwhile asks again.
                let _ = waiter.send(packet[..length].to_vec());
            }
        }
    }

    /// Passes a client's packet on and waits for its answer.
    pub async fn ask(&self, packet: &[u8], patience: Duration) -> io::Result<Option<Vec<u8>>> {
        let Some(awaited) = awaited(packet, DISCOVER) else { return Ok(None) };
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(awaited, answer);
        self.relay.send_to(packet, (SERVER, 67)).await?;
        let outcome = timeout(patience, answered).await;
        if outcome.is_err() {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&awaited);
        }
        Ok(outcome.ok().and_then(Result::ok))
    }
}

/// What a packet asks for, or answers; `first` is the message type that belongs to the first half
/// of an exchange.
fn awaited(packet: &[u8], first: u8) -> Option<Awaited> {
    let xid = packet.get(4..8)?.try_into().ok()?;
    Some((u32::from_be_bytes(xid), option(packet, 53)? == [first]))
}

/// A connection from a machine's own address.
pub async fn connect(from: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let stream = timeout(CONNECT, socket.connect((SERVER, port).into())).await??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A datagram socket with a machine's own address.
pub async fn datagrams(from: Ipv4Addr) -> io::Result<UdpSocket> {
    UdpSocket::bind((from, 0)).await
}
