//! A UDP socket that sends and receives many datagrams in one system call: `recvmmsg`, `sendmmsg`, and UDP segmentation offload
//! (`UDP_SEGMENT`).
//!
//! Blocks are not copied between the file in memory and the kernel. A window is one message; the kernel splits it into datagrams of the
//! size in the socket option `UDP_SEGMENT`. If the kernel or the interface refuses, windows are sent as separate datagrams from then on.

use crate::{
    effect::{Payload, Transmission, block_of},
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

/// Datagrams received, and messages sent, in one system call.
pub(crate) const BATCH: usize = 64;
/// Bytes read of each datagram: an ACK has 4, and only the code of an ERROR counts.
const MAX_RECEIVED: usize = 64;
/// Most datagrams that the kernel makes of one message (UDP_MAX_SEGMENTS).
const MAX_SEGMENTS: usize = 64;
/// The longest UDP payload over IPv4, in bytes.
const MAX_MESSAGE: usize = 65_507;
/// Receive buffer in bytes: acknowledgements of thousands of clients.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Transmission buffer in bytes: less than an interface queue of 1,000 packets takes, so that no packet is dropped there.
const SEND_BUFFER: usize = 1 << 20;

/// The socket of one worker; all its transfers share it.
pub(crate) struct BatchSocket {
    socket: UdpSocket,
    headers: MultiHeaders<SockaddrIn>,
    buffers: Box<[[u8; MAX_RECEIVED]; BATCH]>,
    /// Current value of `UDP_SEGMENT`, in bytes; `None` without segmentation offload.
    segment: Option<usize>,
}

/// The result of sending.
#[derive(Debug)]
pub(crate) enum Sent {
    All,
    /// The send queue of the kernel is full; this many messages were sent.
    Full(usize),
    /// This many messages were sent, and the next one was refused.
    Failed(usize, io::Error),
    /// This many messages were sent. From here on the kernel does not split windows.
    NoSegmentation(usize, io::Error),
}

/// Enlarges the buffers of a socket. Without privileges, the limits of the kernel apply.
pub(crate) fn enlarge(socket: &UdpSocket) {
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).is_err() {
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER);
    }
    if rustix::net::sockopt::set_socket_send_buffer_size_force(socket, SEND_BUFFER).is_err() {
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER);
    }
}

impl BatchSocket {
    /// Takes a bound, non-blocking socket.
    pub(crate) fn new(socket: UdpSocket) -> Self {
        let segment = setsockopt(&socket, UdpGsoSegment, &0).ok().map(|()| 0);
        BatchSocket {
            socket,
            headers: MultiHeaders::preallocate(BATCH, None),
            buffers: Box::new([[0; MAX_RECEIVED]; BATCH]),
            segment,
        }
    }

    /// Returns the socket, to wait for it.
    pub(crate) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Receives up to [`BATCH`] datagrams and returns their number.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(SocketAddrV4, &[u8])) -> io::Result<usize> {
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
    pub(crate) fn send(&mut self, messages: &[Message<'_>]) -> Sent {
        let mut done = 0;
        while done < messages.len() {
            let batch = batch_of(&messages[done..]);
            if let Err(error) = self.segment_windows(&batch) {
                return Sent::NoSegmentation(done, error);
            }
            match self.send_batch(batch.messages) {
                Ok(0) => return Sent::Full(done),
                Ok(sent) => done += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sent::Full(done),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // EIO: the interface has no checksum offload. EINVAL: a segment does not fit its MTU.
                Err(error) if messages[done].datagrams > 1 && refuses_to_cut(&error) => {
                    let _ = setsockopt(&self.socket, UdpGsoSegment, &0);
                    self.segment = None;
                    return Sent::NoSegmentation(done, error);
                }
                Err(error) => return Sent::Failed(done, error),
            }
        }
        Sent::All
    }

    /// Returns true if the kernel splits windows into datagrams.
    pub(crate) fn has_segmentation(&self) -> bool {
        self.segment.is_some()
    }

    /// Sets `UDP_SEGMENT` to the size of the windows in this batch; to 0 if it would split a message that is one datagram.
    fn segment_windows(&mut self, batch: &Batch<'_, '_>) -> io::Result<()> {
        let Some(current) = self.segment else { return Ok(()) };
        let wanted = match batch.segment {
            0 if batch.longest <= current => current,
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

    fn send_batch(&self, batch: &[Message<'_>]) -> io::Result<usize> {
        let addresses: Vec<SocketAddrAny> = batch.iter().map(|message| message.to.into()).collect();
        let mut none: Vec<SendAncillaryBuffer<'_, '_, '_>> = Vec::new();
        none.resize_with(batch.len(), SendAncillaryBuffer::default);
        let mut headers: Vec<MMsgHdr<'_>> = batch
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

/// One message for the kernel: a datagram, or several datagrams of one size.
pub(crate) struct Message<'a> {
    to: SocketAddrV4,
    parts: Vec<IoSlice<'a>>,
    datagrams: usize,
    /// Size of each datagram but the last, in bytes.
    segment: usize,
}

impl<'a> Message<'a> {
    /// Splits the message into one message for each datagram.
    pub(crate) fn into_single(self) -> Vec<Message<'a>> {
        if self.datagrams <= 1 {
            return vec![self];
        }
        // Each block has two parts: header and data.
        let single = |parts: &[IoSlice<'a>]| Message { parts: parts.to_vec(), datagrams: 1, ..self };
        self.parts.chunks(2).map(single).collect()
    }
}

/// Messages that one system call can send.
struct Batch<'m, 'a> {
    messages: &'m [Message<'a>],
    /// Value that `UDP_SEGMENT` must have, in bytes; 0 if no message is split.
    segment: usize,
    /// Size of the longest datagram, in bytes.
    longest: usize,
}

fn batch_of<'m, 'a>(messages: &'m [Message<'a>]) -> Batch<'m, 'a> {
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
    Batch { messages: &messages[..length], segment, longest }
}

/// Returns the headers of all blocks, in order.
pub(crate) fn headers_of(sends: &[Transmission]) -> Vec<[u8; HEADER]> {
    let mut headers = Vec::new();
    for send in sends {
        if let Payload::Blocks { first, count, .. } = &send.payload {
            // Block numbers roll over from 65535 to 0.
            headers.extend((*first..first + u64::from(*count)).map(|number| packet::data_header(number as u16)));
        }
    }
    headers
}

/// Returns the messages for these sends. With `segment_windows`, the blocks of a window share messages within the limits of the kernel.
pub(crate) fn messages_of<'a>(
    sends: &'a [Transmission],
    headers: &'a [[u8; HEADER]],
    segment_windows: bool,
) -> Vec<Message<'a>> {
    let mut messages = Vec::with_capacity(sends.len());
    let mut headers = headers.iter();
    for Transmission { to, payload } in sends {
        match payload {
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
                let most = if segment_windows { (MAX_MESSAGE / segment).clamp(1, MAX_SEGMENTS) } else { 1 };
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
