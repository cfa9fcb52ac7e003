//! All transfers of one worker, by client address and port: (time, packet) -> [`Effects`]. Pure.
//!
//! All resources are bounded. An Ethernet source has a share of the table and of the windows: a
//! quarter as a NIC, three quarters as a router. A request above it evicts a transfer of that
//! source. When the table is full, a new request evicts a transfer of any source:
//!
//! 1. The oldest transfer that was never acknowledged, if there are many of these: requests with
//!    forged senders evict each other.
//! 2. Otherwise the slowest transfer of an address that holds more than its share of the table.
//! 3. Otherwise a transfer that hardly moves, then the oldest one that was never acknowledged.
//!
//! A client that reads at a usual rate is never evicted for one with as many transfers. If no
//! transfer can be evicted, the request is not answered and the client repeats it; an ERROR would
//! end its boot. When the window budget is spent, windows become smaller; no client is refused.

use crate::{
    client::{Client, Origin},
    effect::{Effects, Event, Payload, Refusal, Transmission},
    negotiation::Negotiated,
    packet::{self, Code, Mode, Packet, Request},
    transfer::{EVICTABLE_RATE, RepeatedRequest, Transfer, TransferAction},
};
use bytes::Bytes;
use meshd_types::failpoint;
use std::{
    collections::{BTreeSet, HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    net::{Ipv4Addr, SocketAddrV4},
    time::Instant,
};

/// In a full table, one address may hold the n-th part, and so may clients that never acknowledged
/// anything.
const SHARE: usize = 4;

/// Limits of one engine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Simultaneous transfers. Each takes about 300 bytes and shares the file's memory.
    pub transfers: usize,
    /// Sum of all windows in bytes: the largest burst that the network has to take.
    pub window_bytes: usize,
}

/// Looks up a file by name.
pub type Lookup<'a, F> = &'a dyn Fn(&str) -> Option<(Bytes, F)>;

/// Returns the largest IP packet in bytes that reaches a client without fragmentation.
pub type PathMtu = Box<dyn Fn(SocketAddrV4) -> usize + Send>;

/// All transfers of one worker. `F` identifies files ([`crate::Files::Id`]).
pub struct Engine<F> {
    limits: Limits,
    transfers: HashMap<SocketAddrV4, TransferEntry<F>>,
    /// One timer for each transfer. It may fire early: an acknowledgement postpones a deadline
    /// without touching the timer.
    timers: BTreeSet<(Instant, SocketAddrV4)>,
    /// Transfers that were never acknowledged, oldest first.
    unconfirmed: BTreeSet<(Instant, SocketAddrV4)>,
    by_address: HashMap<Ipv4Addr, usize>,
    by_origin: HashMap<Origin, OriginUsage>,
    window_bytes: usize,
    path_mtu: PathMtu,
}

struct TransferEntry<F> {
    transfer: Transfer,
    id: F,
    origin: Origin,
    began: Instant,
    /// Key in `timers`.
    timer: Instant,
    unconfirmed: bool,
}

/// The transfers of one Ethernet source.
#[derive(Default)]
struct OriginUsage {
    transfers: usize,
    window_bytes: usize,
    /// Its transfers that were never acknowledged, oldest first.
    unconfirmed: BTreeSet<(Instant, SocketAddrV4)>,
}

impl<F: Copy> Engine<F> {
    /// Creates an engine without transfers. `path_mtu` is asked once for each transfer with large
    /// blocks.
    pub fn new(limits: Limits, path_mtu: PathMtu) -> Self {
        Engine {
            path_mtu,
            limits,
            transfers: HashMap::new(),
            timers: BTreeSet::new(),
            unconfirmed: BTreeSet::new(),
            by_address: HashMap::new(),
            by_origin: HashMap::new(),
            window_bytes: 0,
        }
    }

    /// Returns the number of transfers.
    pub fn len(&self) -> usize {
        self.transfers.len()
    }

    /// Returns true if there is no transfer.
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Returns the time at which [`Engine::tick`] must be called; `None` without transfers.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Handles a packet to the well-known port (69).
    pub fn handle_request(
        &mut self,
        now: Instant,
        client: Client,
        bytes: &[u8],
        files: Lookup<'_, F>,
        out: &mut Effects<F>,
    ) {
        match packet::parse(bytes) {
            Some(Packet::Read(request)) if request.mode == Mode::Octet => {
                self.start_transfer(now, client, &request, files, out);
            }
            Some(Packet::Read(_)) => out.refuse(client, Refusal::Mode),
            Some(Packet::Write) => out.refuse(client, Refusal::Write),
            // Some firmware sends its ERROR to the well-known port.
            Some(Packet::Error(_)) => self.end(client.address, Event::Aborted, out),
            Some(Packet::Illegal) => out.refuse(client, Refusal::Illegal),
            Some(Packet::Ack(_) | Packet::Unexpected) | None => {
                out.events.push(Event::Malformed { client: client.address })
            }
        }
    }

    /// Handles a packet to the port of the transfers.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        client: SocketAddrV4,
        bytes: &[u8],
        out: &mut Effects<F>,
    ) {
        let number = match packet::parse(bytes) {
            Some(Packet::Ack(number)) => number,
            Some(Packet::Error(_)) => return self.end(client, Event::Aborted, out),
            _ => return out.events.push(Event::Malformed { client }),
        };
        let Some(entry) = self.transfers.get_mut(&client) else {
            return out.events.push(Event::Stray);
        };
        let action = entry.transfer.ack(now, number);
        if entry.unconfirmed && entry.transfer.confirmed {
            entry.unconfirmed = false;
            self.unconfirmed.remove(&(entry.began, client));
            if let Some(usage) = self.by_origin.get_mut(&entry.origin) {
                usage.unconfirmed.remove(&(entry.began, client));
            }
        }
        self.perform(client, action, out);
    }

    /// Records that the send queue did not take the last datagrams to a client. They are sent again
    /// soon; that is no retransmission.
    pub fn postpone(&mut self, now: Instant, client: SocketAddrV4) {
        if let Some(entry) = self.transfers.get_mut(&client) {
            entry.transfer.postpone(now);
            self.reschedule(client);
        }
    }

    /// Handles all deadlines up to `now`.
    pub fn tick(&mut self, now: Instant, out: &mut Effects<F>) {
        while let Some((at, client)) = self.timers.first().copied()
            && at <= now
        {
            let Some(entry) = self.transfers.get_mut(&client) else {
                self.timers.pop_first();
                continue;
            };
            let action = if entry.transfer.deadline <= now {
                entry.transfer.expire(now)
            } else {
                TransferAction::Nothing
            };
            self.perform(client, action, out);
            self.reschedule(client);
        }
    }

    /// Ends all transfers with an ERROR, so that clients try the next server at once.
    pub fn close(&mut self, out: &mut Effects<F>) {
        let client = |(address, entry): (&SocketAddrV4, &TransferEntry<F>)| Client {
            address: *address,
            origin: entry.origin,
        };
        for client in self.transfers.iter().map(client).collect::<Vec<_>>() {
            out.packet(client, packet::error(Code::Undefined, "the server is stopping; try again"));
            self.end(client.address, Event::CutOff, out);
        }
    }

    fn start_transfer(
        &mut self,
        now: Instant,
        client: Client,
        request: &Request<'_>,
        files: Lookup<'_, F>,
        out: &mut Effects<F>,
    ) {
        let Client { address, origin } = client;
        let request_hash = hash_of(request);
        match self
            .transfers
            .get_mut(&address)
            .map(|entry| entry.transfer.repeated(now, request_hash))
        {
            Some(RepeatedRequest::Ignore) => return,
            Some(RepeatedRequest::Answer(action)) => return self.perform(address, action, out),
            Some(RepeatedRequest::Restart) => self.end(address, Event::Restarted, out),
            None => {}
        }
        let Some((file, id)) = files(request.name) else {
            return out.refuse(client, Refusal::NotFound { name: request.name.to_owned() });
        };
        if !self.make_room_of(now, origin, out) || !self.make_room(now, out) {
            return out.events.push(Event::Full { client: address });
        }
        let budget = self.window_budget(origin);
        let negotiated = Negotiated::grant(&request.options, budget, || (self.path_mtu)(address));
        let option_ack = negotiated.option_ack(&request.options, file.len());
        let (transfer, action) = Transfer::begin(now, file, negotiated, option_ack, request_hash);

        self.window_bytes += negotiated.window_bytes();
        *self.by_address.entry(*address.ip()).or_default() += 1;
        let usage = self.by_origin.entry(origin).or_default();
        usage.transfers += 1;
        usage.window_bytes += negotiated.window_bytes();
        usage.unconfirmed.insert((now, address));
        self.unconfirmed.insert((now, address));
        let timer = transfer.deadline;
        self.timers.insert((timer, address));
        let entry = TransferEntry { transfer, id, origin, began: now, timer, unconfirmed: true };
        self.transfers.insert(address, entry);
        out.events.push(Event::Began);
        self.perform(address, action, out);
    }

    /// Returns the bytes that the window of a new transfer may use.
    fn window_budget(&self, origin: Origin) -> usize {
        let used = self.by_origin.get(&origin).map_or(0, |usage| usage.window_bytes);
        let of_origin = origin.share_of(self.limits.window_bytes).saturating_sub(used);
        of_origin.min(self.limits.window_bytes.saturating_sub(self.window_bytes))
    }

    /// Evicts a transfer of an Ethernet source that has used up its share. Returns false if none
    /// can be evicted.
    fn make_room_of(&mut self, now: Instant, origin: Origin, out: &mut Effects<F>) -> bool {
        let Some(usage) = self.by_origin.get(&origin) else { return true };
        if origin == Origin::Unobserved
            || usage.transfers < origin.share_of(self.limits.transfers)
            || !failpoint::defends("tftp-source-share")
        {
            return true;
        }
        let unconfirmed = usage.unconfirmed.first().map(|(_, client)| *client);
        let Some(evicted) = unconfirmed.or_else(|| self.slowest(now, Some(origin))) else {
            return false;
        };
        self.end(evicted, Event::Evicted, out);
        true
    }

    /// Evicts a transfer if the table is full. Returns false if none can be evicted.
    fn make_room(&mut self, now: Instant, out: &mut Effects<F>) -> bool {
        if self.transfers.len() < self.limits.transfers {
            return true;
        }
        let unconfirmed = self.unconfirmed.first().map(|(_, client)| *client);
        let many_unconfirmed = self.unconfirmed.len() > self.limits.transfers / SHARE;
        let slowest = if many_unconfirmed || !failpoint::defends("tftp-displaces-stalled") {
            None
        } else {
            self.slowest(now, None)
        };
        let Some(evicted) = slowest.or(unconfirmed) else { return false };
        self.end(evicted, Event::Evicted, out);
        true
    }

    /// Returns the confirmed transfer to evict first, of all or of one Ethernet source. An address
    /// with more than its share loses transfers at any rate, other addresses only transfers that
    /// hardly move.
    fn slowest(&self, now: Instant, origin: Option<Origin>) -> Option<SocketAddrV4> {
        let share = self.limits.transfers / SHARE;
        let candidates = self.transfers.iter().filter_map(|(client, entry)| {
            if origin.is_some_and(|origin| origin != entry.origin) {
                return None;
            }
            let rate = entry.transfer.evictable_rate(now).filter(|_| !entry.unconfirmed)?;
            let within_share = self.by_address.get(client.ip()).is_none_or(|own| *own <= share);
            (!within_share || rate < EVICTABLE_RATE).then_some((
                within_share,
                rate,
                entry.began,
                *client,
            ))
        });
        candidates.min().map(|(.., client)| client)
    }

    fn perform(&mut self, client: SocketAddrV4, action: TransferAction, out: &mut Effects<F>) {
        let Some(entry) = self.transfers.get(&client) else { return };
        let transfer = &entry.transfer;
        let id = entry.id;
        let to = Client { address: client, origin: entry.origin };
        match action {
            TransferAction::Nothing => {}
            TransferAction::OptionAck => {
                if let Some(option_ack) = &transfer.option_ack {
                    out.packet(to, option_ack.clone());
                }
            }
            TransferAction::Blocks { first, count, resent } => {
                let file = transfer.file.clone();
                let block = transfer.negotiated.block;
                out.sends.push(Transmission {
                    to,
                    payload: Payload::Blocks { file, block, first, count, resent },
                });
            }
            TransferAction::Finished => {
                out.completed.push((*client.ip(), id));
                return self.end(client, Event::Completed, out);
            }
            TransferAction::TimeOut => {
                let (acked, blocks) = transfer.position();
                return self.end(client, Event::TimedOut { client, acked, blocks }, out);
            }
        }
        if transfer.deadline < entry.timer {
            self.reschedule(client);
        }
    }

    fn reschedule(&mut self, client: SocketAddrV4) {
        if let Some(entry) = self.transfers.get_mut(&client) {
            self.timers.remove(&(entry.timer, client));
            entry.timer = entry.transfer.deadline;
            self.timers.insert((entry.timer, client));
        }
    }

    fn end(&mut self, client: SocketAddrV4, how: Event, out: &mut Effects<F>) {
        let Some(entry) = self.transfers.remove(&client) else { return };
        self.timers.remove(&(entry.timer, client));
        self.unconfirmed.remove(&(entry.began, client));
        let window_bytes = entry.transfer.negotiated.window_bytes();
        self.window_bytes -= window_bytes;
        if let Some(usage) = self.by_origin.get_mut(&entry.origin) {
            usage.transfers -= 1;
            usage.window_bytes -= window_bytes;
            usage.unconfirmed.remove(&(entry.began, client));
            if usage.transfers == 0 {
                self.by_origin.remove(&entry.origin);
            }
        }
        if let Some(count) = self.by_address.get_mut(client.ip()) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(client.ip());
            }
        }
        out.events.push(how);
    }
}

/// Returns a hash that distinguishes the requests of one client.
fn hash_of(request: &Request<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (request.name, request.options).hash(&mut hasher);
    hasher.finish()
}
