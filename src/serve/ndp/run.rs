//! One raw socket on one interface. A failure here only delays iPXE.

use super::message::{ADVERTISEMENT, is_solicitation};
use crate::serve::{lan::enlarge_send_queue, log::Log};
use rustix::net::netdevice::name_to_index;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    fs, io,
    net::{Ipv6Addr, SocketAddr},
    time::Duration,
};
use tokio::{net::UdpSocket, time::Instant};
use tokio_util::sync::CancellationToken;

/// Multicast address of all routers (RFC 4291 section 2.7.1).
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Required hop limit. Messages with a lower value passed a router and are ignored (RFC 4861
/// section 6.1.2).
const HOP_LIMIT: u32 = 255;
/// Receive buffer in bytes. A solicitation has about 16; a truncated one is invalid.
const MAX_PACKET: usize = 512;
/// Maximum number of answers per second: enough for a rack that powers on.
const MAX_PER_SECOND: u32 = 2000;
/// Pause after a receive error, which would repeat at once.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Answers on an interface until `shutdown`. Logs if it cannot.
pub async fn run(interface: String, shutdown: CancellationToken) {
    match open(&interface) {
        Ok(socket) => {
            shutdown.run_until_cancelled(answer(interface, socket)).await;
        }
        Err(why) => {
            tracing::info!(interface, %why, "IPv6 router solicitations are not answered: iPXE waits some seconds for a router");
            shutdown.cancelled().await;
        }
    }
}

/// Opens a raw socket. tokio's `UdpSocket` wraps it, because that type sends and receives one
/// message at a time.
fn open(interface: &str) -> io::Result<UdpSocket> {
    let socket =
        Socket::new(Domain::IPV6, Type::RAW.nonblocking().cloexec(), Some(Protocol::ICMPV6))?;
    socket.bind_device(Some(interface.as_bytes()))?;
    socket.join_multicast_v6(&ALL_ROUTERS, name_to_index(&socket, interface)?)?;
    socket.set_unicast_hops_v6(HOP_LIMIT)?;
    enlarge_send_queue(&socket);
    UdpSocket::from_std(socket.into())
}

/// Returns true if this host forwards IPv6 on the interface. Reads the setting for each
/// solicitation, because it can change at any time.
fn forwards(interface: &str) -> bool {
    let setting = fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{interface}/forwarding"));
    setting.is_ok_and(|value| value.trim() != "0")
}

async fn answer(interface: String, socket: UdpSocket) {
    let log = Log::default();
    let mut second = (Instant::now(), 0);
    let mut packet = [0; MAX_PACKET];
    loop {
        let (length, from) = match socket.recv_from(&mut packet).await {
            Ok(received) => received,
            Err(why) => {
                count_dropped("not_received");
                log.warn("ndp_receive", || {
                    format!("{interface}: cannot receive IPv6 router solicitations: {why}")
                });
                tokio::time::sleep(ERROR_PAUSE).await;
                continue;
            }
        };
        // The socket also receives every other ICMPv6 message.
        if !packet.get(..length).is_some_and(is_solicitation) {
            continue;
        }
        if !is_on_this_link(from) {
            count_dropped("sender");
            log.warn("ndp_sender", || {
                format!("{interface}: an IPv6 router solicitation of {from}, which is not link-local, is not answered")
            });
            continue;
        }
        if second.0.elapsed() >= Duration::from_secs(1) {
            second = (Instant::now(), 0);
        }
        second.1 += 1;
        if second.1 > MAX_PER_SECOND {
            count_dropped("rate_limited");
            log.warn("ndp_rate_limited", || {
                format!("{interface}: too many IPv6 router solicitations: some are not answered")
            });
            continue;
        }
        if forwards(&interface) {
            count_dropped("forwarding");
            log.warn("ndp_forwarding", || {
                format!("{interface}: this host forwards IPv6, so it does not answer router solicitations: iPXE waits")
            });
            continue;
        }
        // Waiting for a full queue would delay the answers to others.
        if let Err(why) = socket.try_send_to(&ADVERTISEMENT, from) {
            count_dropped("not_sent");
            log.warn("ndp_send", || {
                format!("{interface}: cannot answer an IPv6 router solicitation: {why}")
            });
        }
    }
}

fn count_dropped(reason: &'static str) {
    metrics::counter!("meshd_ndp_dropped_total", "reason" => reason).increment(1);
}

/// Returns true for a link-local sender, as iPXE always is. Other senders may have no address yet
/// and would need a multicast answer.
fn is_on_this_link(asker: SocketAddr) -> bool {
    matches!(asker, SocketAddr::V6(asker) if asker.ip().is_unicast_link_local())
}
