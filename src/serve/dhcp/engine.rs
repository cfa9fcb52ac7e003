//! The DHCP server without a socket: a packet and the time go in, effects come out (RFC 2131).
//!
//! It owns the lease table and decides at once, in the order of arrival. What it decides becomes true for the client only when
//! the answer goes out, and an acknowledgement goes out only after its lease and boot session are on disk.

use super::{
    bootfile::{BootFile, NoLoader, Sources},
    leases::{LeaseChange, LeaseTable, Refused},
    reply::{Answer, Answerer, SERVER_PORT, destination, netmask},
    request::{Kind, Request},
};
use crate::config::{DhcpMode, Pool};
use crate::fleet::{Exchange, Lease};
use crate::id::Timestamp;
use crate::serve::central::DhcpSeen;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Where a proxy is asked directly (PXE specification 2.1, "boot server").
pub const PROXY_PORT: u16 = 4011;

/// Where a packet came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Who sent it: a client, or its relay.
    pub source: SocketAddrV4,
    /// Our port that it came to: 67 or [`PROXY_PORT`].
    pub local_port: u16,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send.
    Reply {
        /// The packet.
        packet: Vec<u8>,
        /// To whom.
        to: SocketAddrV4,
    },
    /// Record the exchange, with its lease. Effects behind it wait until that is on disk, and are void if it fails.
    Seen(DhcpSeen),
    /// Change what is stored.
    Persist(LeaseChange),
    /// A machine got no address: every one is held.
    PoolExhausted,
    /// Something that an operator should know, once.
    Note(Note),
}

/// Why a client got less than it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// A firmware gets an address, but nothing to boot.
    NoLoader(NoLoader),
    /// A relay of another network passed a request on.
    ForeignRelay(Ipv4Addr),
    /// Another DHCP server is on this network: a client took its offer.
    OtherServer(Ipv4Addr),
    /// A client found its address in use by another machine.
    Declined(Ipv4Addr),
}

/// The DHCP service of one segment.
pub struct Engine {
    mode: Mode,
    sources: Sources,
}

/// What it takes to lease addresses.
struct Authority {
    pool: Pool,
    leases: LeaseTable,
}

enum Mode {
    Authoritative(Box<Authority>),
    Proxy,
    Off,
}

impl Engine {
    /// An engine with what was stored. Authoritative mode without a pool is off; configuration does not let it happen.
    pub fn new(mode: DhcpMode, pool: Option<Pool>, sources: Sources, stored: impl IntoIterator<Item = Lease>) -> Self {
        let mode = match (mode, pool) {
            (DhcpMode::Authoritative, Some(pool)) => {
                let leases = LeaseTable::new(&pool, sources.address, stored);
                Mode::Authoritative(Box::new(Authority { pool, leases }))
            }
            (DhcpMode::Proxy, _) => Mode::Proxy,
            (DhcpMode::Off | DhcpMode::Authoritative, _) => Mode::Off,
        };
        Engine { mode, sources }
    }

    /// Handles one packet. What is no request of a client, or needs no answer, has no effects.
    pub fn handle(&mut self, now: Timestamp, packet: &[u8], origin: Origin) -> Vec<Effect> {
        let Some(request) = Request::parse(packet) else { return Vec::new() };
        let turn = Turn { now, request: &request, origin, sources: &self.sources };
        match &mut self.mode {
            Mode::Authoritative(authority) if origin.local_port == SERVER_PORT => turn.authoritative(authority),
            Mode::Proxy => turn.proxy(),
            Mode::Authoritative(_) | Mode::Off => Vec::new(),
        }
    }
}

/// One request on its way through the engine.
struct Turn<'a> {
    now: Timestamp,
    request: &'a Request,
    origin: Origin,
    sources: &'a Sources,
}

impl Turn<'_> {
    fn authoritative(&self, Authority { pool, leases }: &mut Authority) -> Vec<Effect> {
        let request = self.request;
        if request.is_relayed() && !on_network(pool, request.giaddr) {
            return vec![Effect::Note(Note::ForeignRelay(request.giaddr))];
        }
        match request.kind {
            Kind::Discover => self.discover(pool, leases),
            Kind::Request => self.request(pool, leases),
            Kind::Decline => self.decline(leases),
            Kind::Release => {
                leases.release(self.now, request.mac, request.ciaddr).map(Effect::Persist).into_iter().collect()
            }
            // The answer goes to the address that the packet claims, so that must be where it came from.
            Kind::Inform if request.ciaddr == *self.origin.source.ip() && !request.ciaddr.is_unspecified() => {
                vec![self.reply(Some(pool), Answer::InformAck)]
            }
            Kind::Inform => Vec::new(),
        }
    }

    fn discover(&self, pool: &Pool, leases: &mut LeaseTable) -> Vec<Effect> {
        let (address, reclaimed) = match leases.offer(self.now, self.request.mac) {
            Ok(offered) => offered,
            Err(Refused::Exhausted | Refused::NotYours) => return vec![Effect::PoolExhausted],
        };
        let mut effects: Vec<Effect> = reclaimed.map(Effect::Persist).into_iter().collect();
        effects.push(self.reply(Some(pool), Answer::Offer(address)));
        effects.extend(self.no_loader());
        // An offer promises nothing, so it does not wait for the disk.
        if self.request.exchange != Exchange::Os {
            effects.push(self.seen(Some(address), None));
        }
        effects
    }

    /// Selecting, init-reboot, renewing, rebinding: told apart by options 54 and 50 and ciaddr (RFC 2131, 4.3.2).
    fn request(&self, pool: &Pool, leases: &mut LeaseTable) -> Vec<Effect> {
        let request = self.request;
        if let Some(server) = request.server
            && server != self.sources.address
        {
            leases.withdraw(request.mac);
            return vec![Effect::Note(Note::OtherServer(server))];
        }
        let renewed = (!request.ciaddr.is_unspecified()).then_some(request.ciaddr);
        let Some(wanted) = request.requested.or(renewed) else { return Vec::new() };
        match leases.lease(self.now, request.mac, wanted) {
            Ok(lease) => {
                let mut effects =
                    vec![self.seen(Some(wanted), Some(lease)), self.reply(Some(pool), Answer::Ack(wanted))];
                effects.extend(self.no_loader());
                effects
            }
            Err(_) if !on_network(pool, wanted) => {
                vec![self.reply(None, Answer::Nak("this address is of another network"))]
            }
            Err(_) => vec![self.reply(None, Answer::Nak("this address is not yours"))],
        }
    }

    fn decline(&self, leases: &mut LeaseTable) -> Vec<Effect> {
        let request = self.request;
        let ours = request.server.is_none_or(|server| server == self.sources.address);
        let Some(address) = request.requested.filter(|_| ours) else { return Vec::new() };
        match leases.decline(self.now, request.mac, address) {
            Some(change) => vec![Effect::Persist(change), Effect::Note(Note::Declined(address))],
            None => Vec::new(),
        }
    }

    /// Another server leases the addresses; firmware and iPXE get a boot file beside its offer.
    fn proxy(&self) -> Vec<Effect> {
        let request = self.request;
        let answer = match (request.kind, self.origin.local_port) {
            (Kind::Discover, SERVER_PORT) => Answer::ProxyOffer,
            (Kind::Request, PROXY_PORT) => Answer::ProxyAck,
            (Kind::Request, SERVER_PORT) => return self.takes_elsewhere(),
            _ => return Vec::new(),
        };
        let boot = self.sources.boot_file(request);
        if request.vendor.is_none() || matches!(boot, BootFile::None | BootFile::Missing(_)) {
            return self.no_loader().into_iter().collect();
        }
        vec![self.seen(None, None), self.reply(None, answer)]
    }

    /// A client takes, or keeps, what another server offers. Not ours to answer, but it is how we learn of an address that we did
    /// not give: capabilities are bound to it, and an operating system may get another one than its firmware had.
    fn takes_elsewhere(&self) -> Vec<Effect> {
        let Request { requested, ciaddr, .. } = *self.request;
        let address = requested.or(Some(ciaddr)).filter(|address| !address.is_unspecified());
        address.map(|address| self.seen(Some(address), None)).into_iter().collect()
    }

    fn reply(&self, pool: Option<&Pool>, answer: Answer) -> Effect {
        let answerer = Answerer { address: self.sources.address, pool };
        let packet = answerer.build(self.request, answer, &self.sources.boot_file(self.request));
        Effect::Reply { packet, to: destination(self.request, answer, self.origin.source) }
    }

    fn seen(&self, address: Option<Ipv4Addr>, lease: Option<Lease>) -> Effect {
        let Request { mac, exchange, uuid, arch, .. } = *self.request;
        // What firmware does not say it is, it is by default; iPXE and systems say it or do not.
        let arch = if exchange == Exchange::Firmware { Some(self.request.boot_arch()) } else { arch };
        Effect::Seen(DhcpSeen { mac, exchange, uuid, arch, address, lease })
    }

    fn no_loader(&self) -> Option<Effect> {
        match self.sources.boot_file(self.request) {
            BootFile::Missing(why) => Some(Effect::Note(Note::NoLoader(why))),
            _ => None,
        }
    }
}

fn on_network(pool: &Pool, address: Ipv4Addr) -> bool {
    let mask = netmask(pool.prefix_len);
    u32::from(address) & mask == u32::from(pool.first) & mask
}
