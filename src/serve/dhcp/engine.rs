//! The DHCP server without a socket: a packet and the time go in, effects come out (RFC 2131).
//!
//! One engine owns all segments and their lease tables, and decides at once, in the order of arrival. What it decides becomes
//! true for the client only when the answer goes out, and an acknowledgement goes out only after its lease and boot session
//! are on disk.

use super::{
    bootfile::{BootFile, Sources},
    exchange::Exchange,
    flood::{Flood, Sender},
    machines::Machines,
    note::Note,
    probe,
    request::{Kind, OtherServer, Request},
    route::{Destination, Origin, PROXY_PORT},
    served::Served,
};
use crate::serve::central::{DhcpStep, SegmentHealth};
use meshd_config::{DhcpMode, Link, Reservation, Segment};
use meshd_model::{
    fleet::Lease,
    work::{CardNews, ReservedNic},
};
use meshd_types::{DenyList, MacAddr, Timestamp, fail};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send.
    Reply(Reply),
    /// Store. Effects behind it wait until that is on disk, and are void if it fails.
    Store(DhcpStep),
    /// Something that an operator should know.
    Note(Note),
}

/// A packet to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its bytes.
    pub packet: Vec<u8>,
    /// To whom.
    pub to: Destination,
    /// By the interface, and from the port, that the question came in on.
    pub via: usize,
    /// See `via`.
    pub local_port: u16,
    /// For the count of answers.
    pub kind: ReplyKind,
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplyKind {
    /// An offer.
    Offer,
    /// An acknowledgement.
    Ack,
    /// A refusal.
    Nak,
}

/// An interface on which packets come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// As the kernel names it.
    pub name: String,
    /// What its clients are told.
    pub address: Ipv4Addr,
}

/// What an engine is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where packets come in.
    pub interfaces: Vec<Interface>,
    /// The site's.
    pub segments: Vec<Segment>,
    /// The site's.
    pub reservations: Vec<Reservation>,
    /// Cards of the virtual machines that are on record.
    pub cards: Vec<ReservedNic>,
    /// UUIDs that say nothing: a machine is not known by one of them.
    pub deny: DenyList,
    /// What can be booted.
    pub sources: Sources,
}

/// Packets that came in, by what they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// By [`Kind`], in its order.
    pub requests: [u64; 5],
    /// No DHCP, or nothing that a client says.
    pub odd: u64,
    /// From a card that sends more than its share.
    pub flood: u64,
    /// In the name of another client.
    pub forged: u64,
    /// Through a relay of no segment.
    pub foreign: u64,
    /// DISCOVERs for which there was no address.
    pub refused: u64,
}

/// The DHCP service of a site.
pub struct Engine {
    interfaces: Vec<Ipv4Addr>,
    /// The segment of each interface.
    home: Vec<Option<usize>>,
    relays: BTreeMap<Ipv4Addr, usize>,
    /// Clients of a relayed segment in proxy mode ask the proxy port by unicast, past their relay.
    relays_proxy: bool,
    segments: Vec<Served>,
    /// Every address that meshd answers from.
    own: BTreeSet<Ipv4Addr>,
    /// Of virtual machines.
    cards: BTreeMap<MacAddr, ReservedNic>,
    /// What an operator should know of them.
    notes: Vec<Note>,
    sources: Sources,
    deny: DenyList,
    flood: Flood,
    counters: Counters,
}

impl Engine {
    /// An engine with what was stored.
    pub fn new(setup: Setup, stored: impl IntoIterator<Item = Lease>) -> Self {
        let Setup { interfaces, segments, reservations, cards, deny, sources } = setup;
        let stored: Vec<Lease> = stored.into_iter().collect();
        let place = |name: &str| segments.iter().position(|segment| segment.interface() == Some(name));
        let home = interfaces.iter().map(|interface| place(&interface.name)).collect();
        let interfaces: Vec<Ipv4Addr> = interfaces.into_iter().map(|interface| interface.address).collect();
        let told = segments.iter().filter_map(|segment| segment.address);
        let own: BTreeSet<Ipv4Addr> = interfaces.iter().copied().chain(told).collect();
        let relays = segments.iter().enumerate().filter_map(|(place, segment)| match segment.link {
            Link::Relay(relay) => Some((relay, place)),
            Link::Interface(_) => None,
        });
        let relays = relays.collect();
        let is_relayed_proxy = |segment: &Segment| segment.interface().is_none() && segment.mode == DhcpMode::Proxy;
        let relays_proxy = segments.iter().any(is_relayed_proxy);
        let serve = |segment: Segment| Served::new(segment, &own, &reservations);
        let segments = segments.into_iter().map(serve).collect();
        let mut engine = Engine {
            interfaces,
            home,
            relays,
            relays_proxy,
            segments,
            own,
            cards: BTreeMap::new(),
            notes: Vec::new(),
            sources,
            deny,
            flood: Flood::default(),
            counters: Counters::default(),
        };
        // What is reserved comes first: a lease beside a range counts only where its address is reserved.
        cards.into_iter().for_each(|card| engine.keep(card));
        engine.segments.iter_mut().for_each(|segment| segment.load(&stored));
        engine
    }

    /// What became of the cards of virtual machines.
    pub fn cards(&mut self, news: CardNews) {
        let changed = match news {
            CardNews::Changed(changed) => changed,
            CardNews::All(all) => {
                let mut changed: BTreeMap<MacAddr, Option<ReservedNic>> =
                    self.cards.keys().map(|mac| (*mac, None)).collect();
                changed.extend(all.into_iter().map(|card| (card.mac, Some(card))));
                changed.into_iter().collect()
            }
        };
        let changed: Vec<_> = changed.into_iter().filter(|(mac, card)| self.cards.get(mac) != card.as_ref()).collect();
        // An address may go from one to another.
        for (mac, _) in &changed {
            self.cards.remove(mac);
            let authorities = self.segments.iter_mut().filter_map(|segment| segment.authority.as_mut());
            authorities.for_each(|authority| authority.leases.forget(*mac));
        }
        changed.into_iter().filter_map(|(_, card)| card).for_each(|card| self.keep(card));
    }

    fn keep(&mut self, card: ReservedNic) {
        let refusing = self.segments.iter_mut().map(|segment| segment.keep(&card)).filter(|kept| !kept).count();
        if let (1.., Some(address)) = (refusing, card.address) {
            self.notes.push(Note::NotKept { vm: card.name.clone(), address });
        }
        self.cards.insert(card.mac, card);
    }

    /// What an operator should know of reserved addresses, once.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Handles one packet of a client. What is none, or needs no answer, has no effects.
    pub fn handle(&mut self, now: Timestamp, packet: &[u8], origin: Origin, machines: &dyn Machines) -> Vec<Effect> {
        if !self.flood.allow(now, Sender::of(packet, origin)) {
            self.counters.flood += 1;
            return Vec::new();
        }
        let Some(request) = Request::parse(packet) else {
            self.counters.odd += 1;
            return self.heard(now, packet, origin.via).into_iter().collect();
        };
        self.counters.requests[request.kind as usize] += 1;
        let Some(interface) = self.interfaces.get(origin.via).copied() else { return Vec::new() };
        if request.mac == probe::mac_of(interface) {
            return Vec::new();
        }
        let Some(place) = self.segment_of(&request, origin) else {
            self.counters.foreign += u64::from(request.is_relayed());
            let relay = request.is_relayed().then_some(Note::ForeignRelay(request.giaddr));
            return relay.map(Effect::Note).into_iter().collect();
        };
        let routed = !request.is_relayed() && self.home.get(origin.via).copied().flatten() != Some(place);
        let past_relay = origin.local_port == PROXY_PORT && self.relays_proxy;
        let Some(segment) = self.segments.get_mut(place) else { return Vec::new() };
        if let Some(forged) = forged(&request, origin, routed || past_relay, &segment.relay_macs) {
            self.counters.forged += 1;
            return vec![Effect::Note(forged)];
        }
        let address = segment.address.unwrap_or(interface);
        let card = self.cards.get(&request.mac);
        let turn = Exchange {
            now,
            request: &request,
            origin,
            routed,
            address,
            identifier: request.agent.server.unwrap_or(address),
            own: &self.own,
            // It starts from its volumes: as a node it would be one inside of another.
            boot: if card.is_some() { BootFile::None } else { self.sources.boot_file(&request, address) },
            card,
            machines,
            deny: &self.deny,
        };
        let effects = turn.take(segment);
        self.counters.refused += u64::from(request.kind == Kind::Discover && segment.has_just_refused());
        effects
    }

    /// Handles a packet that a server sent: one of ours, or another that is on the segment of this interface.
    pub fn heard(&mut self, now: Timestamp, packet: &[u8], via: usize) -> Option<Effect> {
        let rival = OtherServer::parse(packet)?;
        if self.own.contains(&rival.server) {
            return None;
        }
        let place = self.home.get(via).copied().flatten()?;
        self.segments.get_mut(place)?.rival(now, rival.server, rival.proxy).map(Effect::Note)
    }

    /// How all segments are. Call it now and then: what was heard long ago is forgotten by it.
    pub fn health(&mut self, now: Timestamp) -> Vec<SegmentHealth> {
        self.segments.iter_mut().map(|segment| segment.health(now)).collect()
    }

    /// Nobody holds this lease any more, and the store has forgotten it. A machine that uses it gets it again when it asks.
    pub fn free(&mut self, now: Timestamp, lease: &Lease) {
        for authority in self.segments.iter_mut().filter_map(|segment| segment.authority.as_mut()) {
            authority.leases.release(now, lease.mac, lease.address);
        }
    }

    /// From now on these are the network cards of approved nodes: their addresses are never given to others.
    pub fn keep_addresses(&mut self, cards: &BTreeSet<MacAddr>) {
        for authority in self.segments.iter_mut().filter_map(|segment| segment.authority.as_mut()) {
            authority.leases.keep_addresses(cards);
        }
    }

    /// What came in since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The segment that a client is on.
    fn segment_of(&self, request: &Request, origin: Origin) -> Option<usize> {
        let home = self.home.get(origin.via).copied().flatten();
        match request.network() {
            // A relay on a segment that meshd hears itself is none that the site has: anybody there could claim to be it.
            Some(network) => self.relays.get(&network).copied().or_else(|| self.behind_relay(network)),
            // A renewal goes to the server by unicast, past the relay; the address tells where it comes from.
            None => {
                let routed = request.ciaddr == *origin.source.ip() && !request.ciaddr.is_unspecified();
                routed.then(|| self.behind_relay(request.ciaddr)).flatten().or(home)
            }
        }
    }

    fn behind_relay(&self, address: Ipv4Addr) -> Option<usize> {
        self.relays.values().copied().find(|place| self.is_on(*place, address))
    }

    fn is_on(&self, place: usize, address: Ipv4Addr) -> bool {
        self.segments.get(place).is_some_and(|segment| segment.is_on_network(address))
    }
}

/// A packet that comes straight from its client was sent by the client's own card. Behind a relay or router the frame is theirs, and
/// comes from one of their addresses, if the site names them.
fn forged(request: &Request, origin: Origin, routed: bool, relay_macs: &[MacAddr]) -> Option<Note> {
    let sender = origin.hardware?;
    let is_forged = if request.is_relayed() || routed {
        !relay_macs.is_empty() && !relay_macs.contains(&sender) && fail::defends("dhcp-relay-source")
    } else {
        sender != request.mac && fail::defends("dhcp-ethernet-source")
    };
    is_forged.then_some(Note::Forged { mac: request.mac, sender, kind: request.kind })
}
