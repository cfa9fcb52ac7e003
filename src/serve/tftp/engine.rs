//! The transfers of one worker, told apart by the client's address and port: (now, packet) -> [`Effects`]. Pure.
//!
//! Everything is bounded. A full table gives up a transfer for a new one. Requests with forged senders displace each other: the one
//! that waited longest for its first acknowledgement goes. While those are few, the transfer goes that moves the fewest bytes, of
//! an address with more than a share of the table before any other. A client that reads at a usual rate is never displaced by one
//! that has as much as it. If nobody can go, a new client hears nothing and asks again: an ERROR would end its boot. A spent window
//! budget makes windows smaller and refuses nobody.

use super::{
    effect::{Effects, Happened, Payload, Refusal, Send},
    negotiation::Terms,
    packet::{self, Code, Mode, Packet, Request},
    transfer::{Again, Transfer, TransferAction, WEAK_RATE},
};
use crate::serve::central::Fetched;
use bytes::Bytes;
use meshd_types::fail;
use std::{
    collections::{BTreeSet, HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    net::{Ipv4Addr, SocketAddrV4},
    time::Instant,
};

/// One part in so many of the table may belong to one address, and to clients that never acknowledged anything, when it is full.
const SHARE: usize = 4;

/// Bounds of one engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Transfers at one time. Each holds about 300 bytes, and no copy of its file.
    pub(super) transfers: usize,
    /// Sum of all windows, in bytes: what the network may have to take at once.
    pub(super) window_bytes: usize,
}

/// Says what a name stands for.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<(Bytes, Fetched)>;

/// All transfers.
pub(super) struct Engine {
    limits: Limits,
    transfers: HashMap<SocketAddrV4, TransferEntry>,
    /// When to look at each transfer, one entry each. It may be early: acknowledgements move a deadline without touching it.
    timers: BTreeSet<(Instant, SocketAddrV4)>,
    /// Those that were never acknowledged, oldest first.
    unconfirmed: BTreeSet<(Instant, SocketAddrV4)>,
    by_address: HashMap<Ipv4Addr, usize>,
    window_bytes: usize,
}

struct TransferEntry {
    transfer: Transfer,
    what: Fetched,
    began: Instant,
    /// Its place in `timers`.
    timer: Instant,
    unconfirmed: bool,
}

impl Engine {
    pub(super) fn new(limits: Limits) -> Self {
        Engine {
            limits,
            transfers: HashMap::new(),
            timers: BTreeSet::new(),
            unconfirmed: BTreeSet::new(),
            by_address: HashMap::new(),
            window_bytes: 0,
        }
    }

    /// Transfers under way.
    pub(super) fn len(&self) -> usize {
        self.transfers.len()
    }

    /// When [`Engine::tick`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// A packet came to the well-known port.
    pub(super) fn request(
        &mut self,
        now: Instant,
        client: SocketAddrV4,
        bytes: &[u8],
        files: Lookup<'_>,
        out: &mut Effects,
    ) {
        match packet::parse(bytes) {
            Some(Packet::Read(request)) if request.mode == Mode::Octet => {
                self.read(now, client, &request, files, out);
            }
            Some(Packet::Read(_)) => out.refuse(client, Refusal::Mode),
            Some(Packet::Write) => out.refuse(client, Refusal::Write),
            // Some firmware sends its ERROR to the port that it knows.
            Some(Packet::Error(_)) => self.end(client, Happened::Aborted, out),
            Some(Packet::Ack(_) | Packet::Stray) | None => out.happened.push(Happened::Malformed),
        }
    }

    /// A packet came to the port of the transfers.
    pub(super) fn receive(&mut self, now: Instant, client: SocketAddrV4, bytes: &[u8], out: &mut Effects) {
        let number = match packet::parse(bytes) {
            Some(Packet::Ack(number)) => number,
            Some(Packet::Error(_)) => return self.end(client, Happened::Aborted, out),
            _ => return out.happened.push(Happened::Malformed),
        };
        // Nobody's: most often a copy of the last acknowledgement. An ERROR could only disturb who sent it.
        let Some(entry) = self.transfers.get_mut(&client) else { return };
        let step = entry.transfer.ack(now, number);
        if entry.unconfirmed && entry.transfer.confirmed {
            entry.unconfirmed = false;
            self.unconfirmed.remove(&(entry.began, client));
        }
        self.perform(client, step, out);
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Instant, out: &mut Effects) {
        while let Some((at, client)) = self.timers.first().copied()
            && at <= now
        {
            let Some(entry) = self.transfers.get_mut(&client) else {
                self.timers.pop_first();
                continue;
            };
            let step =
                if entry.transfer.deadline <= now { entry.transfer.expire(now) } else { TransferAction::Nothing };
            self.perform(client, step, out);
            self.reschedule(client);
        }
    }

    /// Ends everything, and says so: clients ask the next server at once.
    pub(super) fn close(&mut self, out: &mut Effects) {
        for client in self.transfers.keys().copied().collect::<Vec<_>>() {
            out.packet(client, packet::error(Code::Undefined, "the server stops; ask again"));
            self.end(client, Happened::CutOff, out);
        }
    }

    fn read(
        &mut self,
        now: Instant,
        client: SocketAddrV4,
        request: &Request<'_>,
        files: Lookup<'_>,
        out: &mut Effects,
    ) {
        let mark = mark_of(request);
        match self.transfers.get_mut(&client).map(|entry| entry.transfer.again(now, mark)) {
            Some(Again::Ignore) => return,
            Some(Again::Answer(step)) => return self.perform(client, step, out),
            Some(Again::Restart) => self.end(client, Happened::Restarted, out),
            None => {}
        }
        let Some((file, what)) = files(request.name) else {
            return out.refuse(client, Refusal::NotFound { name: request.name.to_owned() });
        };
        if let Err(cause) = self.make_room(now, out) {
            return out.happened.push(Happened::Full { client, cause });
        }
        let room = self.limits.window_bytes.saturating_sub(self.window_bytes);
        let terms = Terms::grant(&request.asked, room);
        let offer = terms.offer(&request.asked, file.len());
        let (transfer, step) = Transfer::begin(now, file, terms, offer, mark);

        self.window_bytes += terms.window_bytes();
        *self.by_address.entry(*client.ip()).or_default() += 1;
        self.unconfirmed.insert((now, client));
        let timer = transfer.deadline;
        self.timers.insert((timer, client));
        self.transfers.insert(client, TransferEntry { transfer, what, began: now, timer, unconfirmed: true });
        out.happened.push(Happened::Began);
        self.perform(client, step, out);
    }

    fn make_room(&mut self, now: Instant, out: &mut Effects) -> Result<(), &'static str> {
        if self.transfers.len() < self.limits.transfers {
            return Ok(());
        }
        let unconfirmed = self.unconfirmed.first().map(|(_, client)| *client);
        let many_unconfirmed = self.unconfirmed.len() > self.limits.transfers / SHARE;
        let weakest =
            if many_unconfirmed || !fail::defends("tftp-displaces-stalled") { None } else { self.weakest(now) };
        let goes = weakest.or(unconfirmed).ok_or("too many transfers")?;
        self.end(goes, Happened::Displaced, out);
        Ok(())
    }

    /// The confirmed transfer that loses its place first. Addresses with more than a share lose theirs at any rate, others only if
    /// they hardly move.
    fn weakest(&self, now: Instant) -> Option<SocketAddrV4> {
        let share = self.limits.transfers / SHARE;
        let candidates = self.transfers.iter().filter_map(|(client, entry)| {
            let rate = entry.transfer.weakness(now).filter(|_| !entry.unconfirmed)?;
            let within_share = self.by_address.get(client.ip()).is_none_or(|own| *own <= share);
            (!within_share || rate < WEAK_RATE).then_some((within_share, rate, entry.began, *client))
        });
        candidates.min().map(|(.., client)| client)
    }

    fn perform(&mut self, client: SocketAddrV4, step: TransferAction, out: &mut Effects) {
        let Some(entry) = self.transfers.get(&client) else { return };
        let (transfer, what) = (&entry.transfer, entry.what);
        match step {
            TransferAction::Nothing => {}
            TransferAction::Offer => {
                if let Some(offer) = &transfer.offer {
                    out.packet(client, offer.clone());
                }
            }
            TransferAction::Blocks { first, count, again } => {
                let (file, block) = (transfer.file.clone(), transfer.terms.block);
                out.sends.push(Send { to: client, what: Payload::Blocks { file, block, first, count, again } });
            }
            TransferAction::Finished => return self.end(client, Happened::Fetched { from: *client.ip(), what }, out),
            TransferAction::GiveUp => {
                let (acked, blocks) = transfer.position();
                return self.end(client, Happened::Silent { client, acked, blocks }, out);
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

    fn end(&mut self, client: SocketAddrV4, how: Happened, out: &mut Effects) {
        let Some(entry) = self.transfers.remove(&client) else { return };
        self.timers.remove(&(entry.timer, client));
        self.unconfirmed.remove(&(entry.began, client));
        self.window_bytes -= entry.transfer.terms.window_bytes();
        if let Some(count) = self.by_address.get_mut(client.ip()) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(client.ip());
            }
        }
        out.happened.push(how);
    }
}

/// Tells requests of one client apart.
fn mark_of(request: &Request<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (request.name, request.asked).hash(&mut hasher);
    hasher.finish()
}
