//! Raw sockets on one interface. A failure here only delays iPXE.

use super::message::{ADVERTISEMENT, is_solicitation};
use crate::{lan::drop_all_received, log::Log};
use meshd_types::failpoint;
use rustix::net::netdevice::name_to_index;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    fs, io,
    net::{Ipv6Addr, SocketAddr, SocketAddrV6},
    time::Duration,
};
use tokio::{
    net::UdpSocket,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

/// Multicast addresses of all nodes and of all routers (RFC 4291 section 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Required hop limit. Messages with a lower value passed a router and are ignored (RFC 4861
/// section 6.1.2).
const HOP_LIMIT: u32 = 255;
/// Receive buffer in bytes. A solicitation has about 16; a truncated one is invalid.
const MAX_PACKET: usize = 512;
/// Maximum number of answers per second to the solicitor alone. The kernel keeps an answer for
/// seconds until it has found the solicitor, and a sender can invent addresses.
const MAX_PER_SECOND: u32 = 100;
/// Minimum interval of answers to all nodes.
const MULTICAST_INTERVAL: Duration = Duration::from_millis(100);
/// Pause after a receive error, which would repeat at once.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Answers on an interface until `shutdown`. Logs if it cannot.
pub async fn run(interface: String, shutdown: CancellationToken) {
    match Advertiser::open(&interface) {
        Ok(advertiser) => {
            shutdown.run_until_cancelled(advertiser.run()).await;
        }
        Err(why) => {
            tracing::info!(interface, %why, "IPv6 router solicitations are not answered: iPXE waits some seconds for a router");
            shutdown.cancelled().await;
        }
    }
}

/// Answers the solicitations of one interface.
struct Advertiser {
    interface: String,
    /// Receives solicitations, and sends answers to single nodes.
    socket: UdpSocket,
    /// Sends answers to all nodes, past the queue of `socket`.
    multicast: UdpSocket,
    all_nodes: SocketAddr,
    log: Log,
    /// Begin of a second, and the number of answers to single nodes in it.
    second: (Instant, u32),
    /// Earliest time of the next answer to all nodes.
    next_multicast: Instant,
    /// A node waits for the next answer to all nodes.
    is_awaited: bool,
}

impl Advertiser {
    fn open(interface: &str) -> io::Result<Self> {
        let socket = raw_socket(interface)?;
        let index = name_to_index(&socket, interface)?;
        socket.join_multicast_v6(&ALL_ROUTERS, index)?;
        socket.set_unicast_hops_v6(HOP_LIMIT)?;
        let multicast = raw_socket(interface)?;
        drop_all_received(&multicast)?;
        multicast.set_multicast_if_v6(index)?;
        multicast.set_multicast_hops_v6(HOP_LIMIT)?;
        let now = Instant::now();
        Ok(Advertiser {
            interface: interface.to_owned(),
            socket: UdpSocket::from_std(socket.into())?,
            multicast: UdpSocket::from_std(multicast.into())?,
            all_nodes: SocketAddrV6::new(ALL_NODES, 0, 0, index).into(),
            log: Log::default(),
            second: (now, 0),
            next_multicast: now,
            is_awaited: false,
        })
    }

    async fn run(mut self) {
        let mut packet = [0; MAX_PACKET];
        loop {
            let received = tokio::select! {
                received = self.socket.recv_from(&mut packet) => received,
                () = sleep_until(self.next_multicast), if self.is_awaited => {
                    self.answer_all();
                    continue;
                }
            };
            match received {
                // The socket also receives every other ICMPv6 message.
                Ok((length, from)) => {
                    if packet.get(..length).is_some_and(is_solicitation) {
                        self.answer(from);
                    }
                }
                Err(why) => {
                    let interface = &self.interface;
                    count_dropped("not_received");
                    self.log.warn("ndp_receive", || {
                        format!("{interface}: cannot receive IPv6 router solicitations: {why}")
                    });
                    sleep(ERROR_PAUSE).await;
                }
            }
        }
    }

    /// Answers one node, or many together if they are too many or if its queue is full.
    fn answer(&mut self, from: SocketAddr) {
        let interface = &self.interface;
        if !is_on_this_link(from) {
            count_dropped("sender");
            self.log.warn("ndp_sender", || {
                format!("{interface}: an IPv6 router solicitation of {from}, which is not link-local, is not answered")
            });
        } else if forwards(interface) {
            count_dropped("forwarding");
            self.log.warn("ndp_forwarding", || {
                format!("{interface}: this host forwards IPv6, so it does not answer router solicitations: iPXE waits")
            });
        } else if !self.answer_node(from) {
            self.is_awaited = failpoint::defends("ndp-multicast");
        }
    }

    /// Sends an answer to one node. Returns false if it was not sent.
    fn answer_node(&mut self, node: SocketAddr) -> bool {
        if self.second.0.elapsed() >= Duration::from_secs(1) {
            self.second = (Instant::now(), 0);
        }
        self.second.1 = self.second.1.saturating_add(1);
        // Waiting for a full queue would delay the answers to others.
        self.second.1 <= MAX_PER_SECOND && self.socket.try_send_to(&ADVERTISEMENT, node).is_ok()
    }

    /// Sends one answer to all nodes.
    fn answer_all(&mut self) {
        self.next_multicast = Instant::now() + MULTICAST_INTERVAL;
        let sent = self.multicast.try_send_to(&ADVERTISEMENT, self.all_nodes);
        self.is_awaited = sent.is_err();
        if let Err(why) = sent {
            let interface = &self.interface;
            count_dropped("not_sent");
            self.log.warn("ndp_send", || {
                format!("{interface}: cannot answer IPv6 router solicitations: {why}")
            });
        }
    }
}

/// Opens a raw socket. tokio's `UdpSocket` wraps it, because that type sends and receives one
/// message at a time.
fn raw_socket(interface: &str) -> io::Result<Socket> {
    let kind = Type::RAW.nonblocking().cloexec();
    let socket = Socket::new(Domain::IPV6, kind, Some(Protocol::ICMPV6))?;
    socket.bind_device(Some(interface.as_bytes()))?;
    Ok(socket)
}

/// Returns true if this host forwards IPv6 on the interface. Reads the setting for each
/// solicitation, because it can change at any time.
fn forwards(interface: &str) -> bool {
    let setting = fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{interface}/forwarding"));
    setting.is_ok_and(|value| value.trim() != "0")
}

fn count_dropped(reason: &'static str) {
    metrics::counter!("meshd_ndp_dropped_total", "reason" => reason).increment(1);
}

/// Returns true for a link-local sender, as iPXE always is. Other senders may have no address yet
/// and would need a multicast answer.
fn is_on_this_link(asker: SocketAddr) -> bool {
    matches!(asker, SocketAddr::V6(asker) if asker.ip().is_unicast_link_local())
}
