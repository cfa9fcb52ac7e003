//! Many datagrams in one system call: `recvmmsg`, `sendmmsg`, and windows by UDP segmentation offload (`UDP_SEGMENT`).
//!
//! Blocks travel from the memory of the catalog to the kernel without a copy in between. A window is one message: the kernel
//! cuts it into datagrams of the size that the socket's option `UDP_SEGMENT` says; messages that are not longer are not
//! cut. If the kernel or the interface refuses, windows are sent as separate datagrams from then on.

use super::{
    effect::{Payload, Send, block_of},
    negotiation::{MAX_BLOCK, MAX_WINDOW},
    packet::{self, HEADER},
};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, setsockopt, sockopt::UdpGsoSegment};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg};
use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{SocketAddrV4, UdpSocket},
    os::fd::AsRawFd,
};

/// Datagrams received in one call, and messages sent in one.
pub(super) const BATCH: usize = 64;
/// Bytes read of each datagram: acknowledgements have 4, and of an ERROR only the code counts.
const MAX_RECEIVED: usize = 64;
/// The kernel cuts a message into at most so many datagrams (UDP_MAX_SEGMENTS).
const MAX_SEGMENTS: usize = 64;
/// The longest UDP payload over IPv4, in bytes.
const MAX_MESSAGE: usize = 65_507;
/// Received and not yet read: acknowledgements of thousands of clients, in bytes.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Sent and still in the kernel, in bytes: below what a queue of 1,000 packets takes, so that none is dropped there.
const SEND_BUFFER: usize = 1 << 20;

/// A socket that many transfers share.
pub(super) struct Shared {
    socket: UdpSocket,
    headers: MultiHeaders<SockaddrIn>,
    buffers: Box<[[u8; MAX_RECEIVED]; BATCH]>,
    /// The size that the kernel cuts messages into now; `None` if it does not cut.
    segment: Option<usize>,
}

/// What sending ended with.
#[derive(Debug)]
pub(super) enum Sent {
    All,
    /// The kernel's queue is full: the first so many messages have left.
    Full(usize),
    /// The first so many have left, the next was refused.
    Failed(usize, io::Error),
    /// As many have left; from here on windows are not cut by the kernel.
    NotCut(usize, io::Error),
}

/// Makes a bound socket ready for many clients. Without privileges the kernel's default buffers must do.
pub(super) fn enlarge(socket: &UdpSocket) {
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).is_err() {
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER);
    }
    if rustix::net::sockopt::set_socket_send_buffer_size_force(socket, SEND_BUFFER).is_err() {
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER);
    }
}

impl Shared {
    /// Takes a bound, non-blocking socket.
    pub(super) fn new(socket: UdpSocket) -> Self {
        let segment = setsockopt(&socket, UdpGsoSegment, &0).ok().map(|()| 0);
        Shared {
            socket,
            headers: MultiHeaders::preallocate(BATCH, None),
            buffers: Box::new([[0; MAX_RECEIVED]; BATCH]),
            segment,
        }
    }

    /// The socket, for waiting.
    pub(super) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Reads what is there, at most [`BATCH`] datagrams, and says how many there were.
    pub(super) fn receive(&mut self, mut each: impl FnMut(SocketAddrV4, &[u8])) -> io::Result<usize> {
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            self.buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let descriptor = self.socket.as_raw_fd();
        let received = recvmmsg(descriptor, &mut self.headers, &mut slices, MsgFlags::MSG_DONTWAIT, None)?;
        let mut count = 0;
        for message in received {
            count += 1;
            if let (Some(from), Some(bytes)) = (message.address, message.iovs().next()) {
                each(from.into(), bytes);
            }
        }
        Ok(count)
    }

    /// Sends messages in their order.
    pub(super) fn send(&mut self, messages: &[Message<'_>]) -> Sent {
        let mut done = 0;
        while done < messages.len() {
            let run = run_of(&messages[done..]);
            if let Err(error) = self.cut(&run) {
                return Sent::NotCut(done, error);
            }
            match self.send_run(run.messages) {
                Ok(0) => return Sent::Full(done),
                Ok(sent) => done += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sent::Full(done),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // EIO: the interface has no checksum offload. EINVAL: a segment does not fit its MTU.
                Err(error) if messages[done].datagrams > 1 && refuses_to_cut(&error) => {
                    let _ = setsockopt(&self.socket, UdpGsoSegment, &0);
                    self.segment = None;
                    return Sent::NotCut(done, error);
                }
                Err(error) => return Sent::Failed(done, error),
            }
        }
        Sent::All
    }

    /// Whether the kernel cuts windows.
    pub(super) fn cuts(&self) -> bool {
        self.segment.is_some()
    }

    /// Tells the kernel which size to cut to: that of the run's windows, or none if it would cut what is whole.
    fn cut(&mut self, run: &Run<'_, '_>) -> io::Result<()> {
        let Some(current) = self.segment else { return Ok(()) };
        let wanted = match run.segment {
            0 if run.longest <= current => current,
            segment => segment,
        };
        if wanted != current {
            let size = i32::try_from(wanted).map_err(io::Error::other)?;
            let set = setsockopt(&self.socket, UdpGsoSegment, &size);
            self.segment = set.is_ok().then_some(wanted);
            set?;
        }
        Ok(())
    }

    fn send_run(&self, run: &[Message<'_>]) -> io::Result<usize> {
        let addresses: Vec<SocketAddrAny> = run.iter().map(|message| message.to.into()).collect();
        let mut none: Vec<SendAncillaryBuffer<'_, '_, '_>> = Vec::new();
        none.resize_with(run.len(), SendAncillaryBuffer::default);
        let mut headers: Vec<MMsgHdr<'_>> = run
            .iter()
            .zip(&addresses)
            .zip(&mut none)
            .map(|((message, to), control)| MMsgHdr::new_with_addr(to, &message.parts, control))
            .collect();
        Ok(sendmmsg(&self.socket, &mut headers, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }
}

fn refuses_to_cut(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let refused = [Errno::IO, Errno::INVAL, Errno::MSGSIZE, Errno::OPNOTSUPP];
    error.raw_os_error().is_some_and(|code| refused.iter().any(|errno| errno.raw_os_error() == code))
}

/// One message to the kernel: a datagram, or several of one size that it shall cut.
pub(super) struct Message<'a> {
    to: SocketAddrV4,
    parts: Vec<IoSlice<'a>>,
    datagrams: usize,
    /// Bytes of the first datagram, which are those of all but the last.
    segment: usize,
}

impl<'a> Message<'a> {
    /// Its datagrams one by one.
    pub(super) fn apart(self) -> Vec<Message<'a>> {
        if self.datagrams <= 1 {
            return vec![self];
        }
        // Each block has two parts: header and data.
        let single = |parts: &[IoSlice<'a>]| Message { parts: parts.to_vec(), datagrams: 1, ..self };
        self.parts.chunks(2).map(single).collect()
    }
}

/// Messages that one call can send.
struct Run<'m, 'a> {
    messages: &'m [Message<'a>],
    /// The size that the kernel shall cut to, in bytes; 0 if there is nothing to cut.
    segment: usize,
    /// Bytes of the longest datagram.
    longest: usize,
}

fn run_of<'m, 'a>(messages: &'m [Message<'a>]) -> Run<'m, 'a> {
    let (mut segment, mut longest, mut length) = (0, 0, 0);
    for message in messages.iter().take(BATCH) {
        let together = match message.datagrams {
            0 | 1 => segment == 0 || message.segment <= segment,
            _ => (segment == 0 || message.segment == segment) && longest <= message.segment,
        };
        if !together {
            break;
        }
        if message.datagrams > 1 {
            segment = message.segment;
        }
        longest = longest.max(message.segment);
        length += 1;
    }
    Run { messages: &messages[..length], segment, longest }
}

/// The headers of all blocks of some sends, in their order.
pub(super) fn headers_of(sends: &[Send]) -> Vec<[u8; HEADER]> {
    let mut headers = Vec::new();
    for send in sends {
        if let Payload::Blocks { first, count, .. } = &send.what {
            // Block numbers roll over from 65535 to 0.
            headers.extend((*first..first + u64::from(*count)).map(|number| packet::data_header(number as u16)));
        }
    }
    headers
}

/// Messages for some sends. With `cut`, the blocks of a window share messages as long as the kernel's bounds allow.
pub(super) fn messages_of<'a>(sends: &'a [Send], headers: &'a [[u8; HEADER]], cut: bool) -> Vec<Message<'a>> {
    let mut messages = Vec::with_capacity(sends.len());
    let mut headers = headers.iter();
    for Send { to, what } in sends {
        match what {
            Payload::Packet(bytes) => {
                messages.push(Message {
                    to: *to,
                    parts: vec![IoSlice::new(bytes)],
                    datagrams: 1,
                    segment: bytes.len(),
                });
            }
            Payload::Blocks { file, block, first, count, .. } => {
                let segment = HEADER + usize::from(*block);
                let most = if cut { (MAX_MESSAGE / segment).clamp(1, MAX_SEGMENTS) } else { 1 };
                let mut left = usize::from(*count);
                let mut number = *first;
                while left > 0 {
                    let datagrams = left.min(most);
                    let mut parts = Vec::with_capacity(2 * datagrams);
                    for header in headers.by_ref().take(datagrams) {
                        parts.push(IoSlice::new(header));
                        parts.push(IoSlice::new(block_of(file, *block, number)));
                        number += 1;
                    }
                    messages.push(Message { to: *to, parts, datagrams, segment });
                    left -= datagrams;
                }
            }
        }
    }
    messages
}

const _: () = assert!(MAX_WINDOW as usize * (HEADER + MAX_BLOCK as usize) < SEND_BUFFER);
