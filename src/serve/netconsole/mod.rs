//! Receives kernel messages that nodes send by UDP while they boot: Linux's netconsole.
//!
//! | module | content |
//! | --- | --- |
//! | here | the socket of an interface |
//! | `packet` | the text of a packet |

mod packet;

pub use packet::text_of;

use crate::lan::enlarge_receive_buffer;
use meshd_central::Shared;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};
use tokio::{net::UdpSocket, time::sleep};
use tokio_util::sync::CancellationToken;

/// Size of the read buffer; longer packets are cut.
const MAX_PACKET: usize = 2048;
/// Kernel buffer for received packets, in bytes. A kernel sends all its earlier messages at once when
/// netconsole starts, and nodes start together. Debian's kernel has 350; Linux's default buffer, 208
/// KiB, held 256.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Pause after a receive error, which would repeat at once.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Receives on an interface until `shutdown`. Logs if it cannot.
pub async fn run(interface: String, port: u16, central: Shared, shutdown: CancellationToken) {
    match open(&interface, port) {
        Ok(socket) => {
            shutdown.run_until_cancelled(receive(&socket, &central)).await;
        }
        Err(why) => {
            tracing::error!(interface, port, %why, "kernel messages of nodes are not received: give [boot].netconsole_port another port");
            shutdown.cancelled().await;
        }
    }
}

fn open(interface: &str, port: u16) -> io::Result<UdpSocket> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::IPV4, kind, Some(Protocol::UDP))?;
    enlarge_receive_buffer(&socket, RECEIVE_BUFFER);
    socket.bind_device(Some(interface.as_bytes()))?;
    socket.bind(&SocketAddr::from(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)).into())?;
    UdpSocket::from_std(socket.into())
}

/// One packet after another: the kernel drops what is too much.
async fn receive(socket: &UdpSocket, central: &Shared) {
    let mut packet = [0; MAX_PACKET];
    loop {
        match socket.recv_from(&mut packet).await {
            Ok((length, SocketAddr::V4(from))) => {
                let text = text_of(packet.get(..length).unwrap_or_default());
                if !text.is_empty() {
                    central.boot.store_kernel_message(*from.ip(), text).await;
                }
            }
            Ok(_) => {}
            Err(_) => sleep(ERROR_PAUSE).await,
        }
    }
}
