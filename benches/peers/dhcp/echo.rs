//! A responder that knows nothing: each packet is answered with the least that perfdhcp takes for
//! an OFFER or ACK.

use crate::frame::{SERVER, SERVER_INTERFACE, Wire};
use anyhow::Context as _;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// How soon it sees that it should stop.
const LOOK: Duration = Duration::from_millis(100);

/// The responder; stops when dropped.
pub struct Responder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Starts it in the server's namespace.
pub fn start(wire: &Wire) -> anyhow::Result<Responder> {
    let opened = wire.server.inside(|| -> std::io::Result<UdpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind_device(Some(SERVER_INTERFACE.as_bytes()))?;
        socket.set_read_timeout(Some(LOOK))?;
        socket.set_recv_buffer_size(4 << 20)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 67)).into())?;
        Ok(socket.into())
    });
    let socket = opened?.context("open port 67 for the echo responder")?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = thread::spawn(move || {
        let mut packet = [0; 2048];
        while !stopped.load(Ordering::Relaxed) {
            let Ok((length, from)) = socket.recv_from(&mut packet) else { continue };
            if let Some(reply) = reply(&packet[..length]) {
                // A client that is gone loses nothing.
                let _ = socket.send_to(&reply, from);
            }
        }
    });
    Ok(Responder { stop, thread: Some(thread) })
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn reply(request: &[u8]) -> Option<Vec<u8>> {
    let kind = match message_type(request.get(240..)?)? {
        1 => 2,
        3 => 5,
        _ => return None,
    };
    let mut reply = request[..240].to_vec();
    reply[0] = 2;
    // An address that follows from the MAC address, so that offer and acknowledgement agree.
    reply[16..20].copy_from_slice(&[10, 79, request[32], request[33]]);
    reply.extend([53, 1, kind, 54, 4]);
    reply.extend(SERVER.octets());
    reply.extend([51, 4, 0, 0, 14, 16, 1, 4, 255, 255, 0, 0, 255]);
    Some(reply)
}

fn message_type(mut options: &[u8]) -> Option<u8> {
    loop {
        match options {
            [0, rest @ ..] => options = rest,
            [53, 1, kind, ..] => return Some(*kind),
            [255, ..] => return None,
            [_, length, rest @ ..] => options = rest.get(usize::from(*length)..)?,
            _ => return None,
        }
    }
}
