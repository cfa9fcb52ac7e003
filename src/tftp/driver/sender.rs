//! Sends the datagrams of the engine without waiting.
//!
//! All clients of a worker share the send queue of one socket. The kernel keeps packets to an
//! address that it has not resolved by ARP in that queue for seconds, so a few invented addresses
//! would fill it. Such clients, and all clients while the queue is full, get frames to the Ethernet
//! source of their request. Only the interface itself fills the queue of frames.

use super::batch_socket::{BATCH, BatchSocket, Message, Sent, headers_of, messages_of};
use crate::{client::Client, effect::Transmission, files::EthernetLink};
use meshd_types::failpoint;
use std::{io, net::SocketAddrV4, time::Instant};

/// Why a datagram was not sent as planned.
#[derive(Debug)]
pub(super) enum Unsent {
    /// The send queue is full; a datagram to this client was dropped.
    QueueFull(SocketAddrV4),
    /// The kernel refused a datagram.
    Refused(io::Error),
    /// From here on the kernel does not split windows. Their blocks were sent one by one.
    NoSegmentation(io::Error),
}

/// Sends `sends` and returns the failures.
pub(super) fn send(
    now: Instant,
    sends: &[Transmission],
    socket: &mut BatchSocket,
    link: Option<&mut Box<dyn EthernetLink>>,
) -> Vec<Unsent> {
    let link = link.filter(|_| failpoint::defends("tftp-frames"));
    let mut sender = Sender { now, link, is_full: false, unsent: Vec::new() };
    for sends in sends.chunks(BATCH) {
        let headers = headers_of(sends);
        let mut messages = messages_of(sends, &headers, |client| socket.segments_for(client));
        if messages.iter().any(|message| sender.needs_frame(message.to())) {
            let (frames, rest): (Vec<_>, Vec<_>) =
                messages.into_iter().partition(|message| sender.needs_frame(message.to()));
            messages = rest;
            frames.into_iter().for_each(|message| sender.send_frames(message));
        }
        sender.send_messages(messages, socket);
    }
    sender.unsent
}

struct Sender<'a> {
    now: Instant,
    link: Option<&'a mut Box<dyn EthernetLink>>,
    /// The send queue of the socket took no more.
    is_full: bool,
    unsent: Vec<Unsent>,
}

impl Sender<'_> {
    /// Returns true if the kernel would keep packets to a client in the send queue.
    fn needs_frame(&mut self, client: Client) -> bool {
        let link = self.link.as_mut().filter(|_| client.origin.mac().is_some());
        link.is_some_and(|link| !link.is_resolved(self.now, *client.address.ip()))
    }

    /// Sends messages by the socket, and as frames once its queue is full.
    fn send_messages(&mut self, mut messages: Vec<Message<'_>>, socket: &mut BatchSocket) {
        let mut done = 0;
        while done < messages.len() && !self.is_full {
            match socket.send(&messages[done..]) {
                Sent::All => return,
                Sent::Full(sent) => {
                    done += sent;
                    self.is_full = true;
                }
                Sent::Failed(sent, error) => {
                    done += sent + 1;
                    self.unsent.push(Unsent::Refused(error));
                }
                Sent::NotSegmented(sent) => {
                    let at = done + sent;
                    let singles = messages.remove(at).into_single();
                    messages.splice(at..at, singles);
                    done = at;
                }
                Sent::NoSegmentation(sent, error) => {
                    self.unsent.push(Unsent::NoSegmentation(error));
                    messages = messages
                        .split_off(done + sent)
                        .into_iter()
                        .flat_map(Message::into_single)
                        .collect();
                    done = 0;
                }
            }
        }
        messages.drain(done..).for_each(|message| self.send_frames(message));
    }

    fn send_frames(&mut self, message: Message<'_>) {
        let client = message.to();
        let link = self.link.as_mut().filter(|_| client.origin.mac().is_some());
        let Some(link) = link else {
            return self.unsent.push(Unsent::QueueFull(client.address));
        };
        for single in message.into_single() {
            match link.send(client, &single.contents()) {
                Ok(()) => {}
                Err(error) if is_full(&error) => {
                    return self.unsent.push(Unsent::QueueFull(client.address));
                }
                Err(error) => self.unsent.push(Unsent::Refused(error)),
            }
        }
    }
}

/// Returns true if the queue of the socket or of the interface is full.
fn is_full(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::AGAIN | Errno::NOBUFS))
}
