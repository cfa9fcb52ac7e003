//! A responder that knows nothing: each acknowledgement is answered with the next block of the one
//! file, many in one system call. It shows what UDP costs in this kernel, and so what no server in
//! lock step can do without.

use crate::frame::{SERVER, SERVER_INTERFACE, Wire};
use anyhow::Context as _;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg};
use rustix::{
    net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg},
    time::{ClockId, clock_gettime},
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{IoSlice, IoSliceMut},
    net::{SocketAddr, SocketAddrV4, UdpSocket},
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// How soon it sees that it should stop.
const LOOK: Duration = Duration::from_millis(100);
const BATCH: usize = 64;
const BLOCK: usize = 1468;

pub struct Responder {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

/// Starts it in the server's namespace.
pub fn start(wire: &Wire, file: Vec<u8>) -> anyhow::Result<Responder> {
    let opened = wire.server.inside(|| -> std::io::Result<UdpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind_device(Some(SERVER_INTERFACE.as_bytes()))?;
        socket.set_read_timeout(Some(LOOK))?;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20)?;
        socket.bind(&SocketAddr::from((SERVER, 69)).into())?;
        Ok(socket.into())
    });
    let socket = opened?.context("open port 69 for the echo responder")?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    Ok(Responder { stop, thread: thread::spawn(move || respond(&socket, &file, &stopped)) })
}

impl Responder {
    /// Stops it; the CPU time that it took.
    pub fn stop(self) -> anyhow::Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the echo responder panicked"))
    }
}

fn respond(socket: &UdpSocket, file: &[u8], stop: &AtomicBool) -> Duration {
    let mut headers = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
    let mut buffers = [[0; 64]; BATCH];
    while !stop.load(Ordering::Relaxed) {
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let wait = MsgFlags::MSG_WAITFORONE;
        let Ok(received) = recvmmsg(socket.as_raw_fd(), &mut headers, &mut slices, wait, None)
        else {
            continue;
        };
        let answers: Vec<(SocketAddrAny, Vec<u8>, &[u8])> = received
            .filter_map(|message| {
                let (header, data) = answer(message.iovs().next()?, file)?;
                Some((SocketAddrV4::from(message.address?).into(), header, data))
            })
            .collect();
        let parts: Vec<[IoSlice<'_>; 2]> = answers
            .iter()
            .map(|(_, header, data)| [IoSlice::new(header), IoSlice::new(data)])
            .collect();
        let mut none: Vec<SendAncillaryBuffer<'_, '_, '_>> = Vec::new();
        none.resize_with(parts.len(), SendAncillaryBuffer::default);
        let messages = answers.iter().zip(&parts).zip(&mut none);
        let mut messages: Vec<MMsgHdr<'_>> = messages
            .map(|(((to, ..), parts), none)| MMsgHdr::new_with_addr(to, parts, none))
            .collect();
        if !messages.is_empty() {
            // What is lost is asked for again.
            let _ = sendmmsg(socket, &mut messages, SendFlags::empty());
        }
    }
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or(0))
}

/// What goes back: a header and a part of the file.
fn answer<'f>(packet: &[u8], file: &'f [u8]) -> Option<(Vec<u8>, &'f [u8])> {
    match packet {
        [0, 1, ..] => {
            Some((format!("\0\x06tsize\0{}\0blksize\0{BLOCK}\0", file.len()).into_bytes(), &[]))
        }
        [0, 4, high, low, ..] => {
            let have = u16::from_be_bytes([*high, *low]);
            let start = usize::from(have) * BLOCK;
            let [high, low] = have.wrapping_add(1).to_be_bytes();
            (start <= file.len())
                .then(|| (vec![0, 3, high, low], &file[start..file.len().min(start + BLOCK)]))
        }
        _ => None,
    }
}
