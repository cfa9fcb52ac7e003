//! A UDP socket that sends and receives many datagrams in one system call: `recvmmsg`, `sendmmsg`,
//! and UDP segmentation offload (`UDP_SEGMENT`).
//!
//! Blocks are not copied between the file in memory and the kernel. A window is one message; the
//! kernel splits it into datagrams of the size in the control message `UDP_SEGMENT`. It is part of
//! each message and not an option of the socket, which would outlive its client. If the kernel or
//! the interface refuses, windows are sent as separate datagrams from then on; if only the path to
//! one client is too narrow, windows to this client.

use crate::{
    client::Client,
    effect::{Payload, Transmission, block_of},
    negotiation::{MAX_BLOCK, MAX_WINDOW},
    packet::{self, HEADER},
};
use nix::{
    cmsg_space,
    sys::socket::{
        ControlMessage, MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg, setsockopt,
        sockopt::UdpGsoSegment,
    },
};
use rustix::net::sockopt::Ipv4PathMtuDiscovery;
use std::{
    cmp::Reverse,
    collections::HashSet,
    io::{self, IoSlice, IoSliceMut},
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
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
/// Most clients behind narrow paths that are remembered.
const MAX_NARROW: usize = 1024;
/// Receive buffer in bytes: acknowledgements of thousands of clients.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Transmission buffer in bytes: less than an interface queue of 1,000 packets takes, so that no
/// packet is dropped there.
const SEND_BUFFER: usize = 1 << 20;

/// The socket of one worker; all its transfers share it.
pub(crate) struct BatchSocket {
    socket: UdpSocket,
    headers: MultiHeaders<SockaddrIn>,
    buffers: Box<[[u8; MAX_RECEIVED]; BATCH]>,
    /// Headers of messages that are one datagram, and of messages with `UDP_SEGMENT`.
    single: MultiHeaders<SockaddrIn>,
    segmented: MultiHeaders<SockaddrIn>,
    has_segmentation: bool,
    /// Clients behind a path that is narrower than their blocks.
    narrow: HashSet<Ipv4Addr>,
}

/// The result of sending.
#[derive(Debug)]
pub(crate) enum Sent {
    All,
    /// The send queue of the kernel is full; this many messages were sent.
    Full(usize),
    /// This many messages were sent. The next one has to be sent as separate datagrams.
    NotSegmented(usize),
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
        // A block that is larger than the path takes arrives in fragments; a router would drop it
        // otherwise (as dnsmasq does).
        let _ = rustix::net::sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DONT);
        let has_segmentation = setsockopt(&socket, UdpGsoSegment, &0).is_ok();
        BatchSocket {
            socket,
            headers: MultiHeaders::preallocate(BATCH, None),
            buffers: Box::new([[0; MAX_RECEIVED]; BATCH]),
            single: MultiHeaders::preallocate(BATCH, None),
            segmented: MultiHeaders::preallocate(BATCH, Some(cmsg_space!(u16))),
            has_segmentation,
            narrow: HashSet::new(),
        }
    }

    /// Returns the socket, to wait for it.
    pub(crate) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Receives up to [`BATCH`] datagrams and returns their number.
    pub(crate) fn receive(
        &mut self,
        mut each: impl FnMut(SocketAddrV4, &[u8]),
    ) -> io::Result<usize> {
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            self.buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let descriptor = self.socket.as_raw_fd();
        let received =
            recvmmsg(descriptor, &mut self.headers, &mut slices, MsgFlags::MSG_DONTWAIT, None)?;
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
            match self.send_batch(batch_of(&messages[done..])) {
                Ok(0) => return Sent::Full(done),
                Ok(sent) => done += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sent::Full(done),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if messages[done].datagrams <= 1 => return Sent::Failed(done, error),
                Err(error) if exceeds_path(&error) => {
                    if self.narrow.len() >= MAX_NARROW {
                        self.narrow.clear();
                    }
                    self.narrow.insert(*messages[done].to.address.ip());
                    return Sent::NotSegmented(done);
                }
                Err(error) if refuses_to_cut(&error) => {
                    self.has_segmentation = false;
                    return Sent::NoSegmentation(done, error);
                }
                Err(error) => return Sent::Failed(done, error),
            }
        }
        Sent::All
    }

    /// Returns true if the kernel splits windows to this client.
    pub(crate) fn segments_for(&self, client: Ipv4Addr) -> bool {
        self.has_segmentation && !self.narrow.contains(&client)
    }

    fn send_batch(&mut self, batch: &[Message<'_>]) -> io::Result<usize> {
        let addresses: Vec<Option<SockaddrIn>> =
            batch.iter().map(|message| Some(message.to.address.into())).collect();
        let parts = batch.iter().map(|message| &message.parts);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let segment = batch.first().map_or(0, Message::segmentation);
        let socket = self.socket.as_raw_fd();
        let sent = match u16::try_from(segment).map_err(io::Error::other)? {
            0 => sendmmsg(socket, &mut self.single, parts, addresses, [], flags)?.count(),
            size => {
                let control = [ControlMessage::UdpGsoSegments(&size)];
                sendmmsg(socket, &mut self.segmented, parts, addresses, control, flags)?.count()
            }
        };
        Ok(sent)
    }
}

/// Returns true if a segment does not fit the MTU of the path (EINVAL before Linux 6.7).
fn exceeds_path(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::MSGSIZE | Errno::INVAL))
}

/// Returns true if the interface has no checksum offload, which segmentation needs.
fn refuses_to_cut(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::IO | Errno::OPNOTSUPP))
}

/// One message for the kernel: a datagram, or several datagrams of one size.
pub(crate) struct Message<'a> {
    to: Client,
    parts: Vec<IoSlice<'a>>,
    datagrams: usize,
    /// Size of each datagram but the last, in bytes.
    segment: usize,
}

impl<'a> Message<'a> {
    /// Returns the value of `UDP_SEGMENT` in bytes; 0 if the message is one datagram.
    fn segmentation(&self) -> usize {
        if self.datagrams > 1 { self.segment } else { 0 }
    }

    /// Returns the client that receives the message.
    pub(crate) fn to(&self) -> Client {
        self.to
    }

    /// Returns the content of a message that is one datagram.
    pub(crate) fn contents(&self) -> Vec<u8> {
        self.parts.iter().flat_map(|part| part.iter().copied()).collect()
    }

    /// Splits the message into one message for each datagram.
    pub(crate) fn into_single(self) -> Vec<Message<'a>> {
        if self.datagrams <= 1 {
            return vec![self];
        }
        // Each block has two parts: header and data.
        let single =
            |parts: &[IoSlice<'a>]| Message { parts: parts.to_vec(), datagrams: 1, ..self };
        self.parts.chunks(2).map(single).collect()
    }
}

/// Returns the first messages that one system call can send: all are segmented alike.
fn batch_of<'m, 'a>(messages: &'m [Message<'a>]) -> &'m [Message<'a>] {
    let segment = messages.first().map_or(0, Message::segmentation);
    let other = messages.iter().take(BATCH).position(|message| message.segmentation() != segment);
    &messages[..other.unwrap_or_else(|| messages.len().min(BATCH))]
}

/// Returns the headers of all blocks, in order.
pub(crate) fn headers_of(sends: &[Transmission]) -> Vec<[u8; HEADER]> {
    let mut headers = Vec::new();
    for send in sends {
        if let Payload::Blocks { first, count, .. } = &send.payload {
            // Block numbers roll over from 65535 to 0.
            headers.extend(
                (*first..first + u64::from(*count))
                    .map(|number| packet::data_header(number as u16)),
            );
        }
    }
    headers
}

/// Returns the messages for these sends, those of one segment size together. If the kernel segments
/// windows to a client, the blocks of a window share messages within the limits of the kernel.
pub(crate) fn messages_of<'a>(
    sends: &'a [Transmission],
    headers: &'a [[u8; HEADER]],
    segments_for: impl Fn(Ipv4Addr) -> bool,
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
                let most = if segments_for(*to.address.ip()) {
                    (MAX_MESSAGE / segment).clamp(1, MAX_SEGMENTS)
                } else {
                    1
                };
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
    // The order of the messages to one client remains: a single block is the rest of its window.
    messages.sort_by_key(|message| Reverse(message.segmentation()));
    messages
}

const _: () = assert!(MAX_WINDOW as usize * (HEADER + MAX_BLOCK as usize) < SEND_BUFFER);
