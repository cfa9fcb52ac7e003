//! One request on its way through its segment.

use super::{
    bootfile::BootFile,
    engine::{Effect, Reply, ReplyKind},
    leases::Asking,
    machines::Machines,
    note::Note,
    reply::{Answer, Answerer},
    request::{Kind, Request, Vendor},
    reserved::Client,
    route::{Destination, Origin, PROXY_PORT, SERVER_PORT},
    served::{Authority, Served},
};
use crate::serve::central::{DhcpSeen, DhcpStep, LeaseChange};
use meshd_config::{DhcpMode, Pool};
use meshd_model::{
    fleet::{DhcpExchange, Lease, RelayPort},
    work::ReservedNic,
};
use meshd_types::{DenyList, Hardware, Timestamp, fail};
use std::{collections::BTreeSet, net::Ipv4Addr};

/// A request, and what its answer takes.
pub(super) struct Exchange<'a> {
    pub(super) now: Timestamp,
    pub(super) request: &'a Request,
    pub(super) origin: Origin,
    /// It came by unicast from behind a router.
    pub(super) routed: bool,
    /// Where the client finds the boot services.
    pub(super) address: Ipv4Addr,
    /// What the client sees as our name.
    pub(super) identifier: Ipv4Addr,
    /// Every address that meshd answers from.
    pub(super) own: &'a BTreeSet<Ipv4Addr>,
    pub(super) boot: BootFile,
    /// The card, if it is a virtual machine's. It gets an address and opens no boot session.
    pub(super) card: Option<&'a ReservedNic>,
    /// UUIDs that say nothing.
    pub(super) deny: &'a DenyList,
    pub(super) machines: &'a dyn Machines,
}

impl Exchange<'_> {
    /// What is to be done.
    pub(super) fn take(&self, segment: &mut Served) -> Vec<Effect> {
        if let Some(refused) = self.at_another_port() {
            return vec![Effect::Note(refused)];
        }
        match segment.mode {
            DhcpMode::Authoritative if self.origin.local_port == SERVER_PORT => self.authoritative(segment),
            DhcpMode::Proxy if self.card.is_none() => self.proxy(segment),
            DhcpMode::Authoritative | DhcpMode::Proxy | DhcpMode::Off => Vec::new(),
        }
    }

    fn authoritative(&self, segment: &mut Served) -> Vec<Effect> {
        let request = self.request;
        if let Some(server) = request.server
            && !self.is_ours(server)
        {
            return self.passed_over(segment, server);
        }
        match request.kind {
            Kind::Discover => self.discover(segment),
            Kind::Request => self.request(segment),
            Kind::Decline => self.decline(segment),
            Kind::Release => self.release(segment),
            Kind::Inform => self.inform(segment),
        }
    }

    /// The relay says that the client is plugged in elsewhere than its node was when it enrolled: it is another machine, or was moved.
    fn at_another_port(&self) -> Option<Note> {
        let seen = self.request.agent.port.clone();
        // A switch may write the option as well, and need not do so for a renewal by unicast.
        let tells = self.request.is_relayed() || seen.is_some();
        if !tells {
            return None;
        }
        let mac = self.request.mac;
        let known = self.machines.attachment(mac, self.request.exchange != DhcpExchange::Os)?;
        if self.request.is_relayed() && known.is_local && fail::defends("dhcp-local-node") {
            return Some(Note::OtherPort { mac, known: RelayPort::default(), seen });
        }
        let known = known.relay_port.filter(|_| fail::defends("dhcp-relay-port"))?;
        (seen.as_ref() != Some(&known)).then_some(Note::OtherPort { mac, known, seen })
    }

    /// A lease ends, unless its machine boots or runs with it: then somebody else speaks in its name, or it is mistaken.
    fn release(&self, segment: &mut Served) -> Vec<Effect> {
        let Request { mac, ciaddr, .. } = *self.request;
        if fail::defends("dhcp-release-in-use") && self.machines.uses_address(mac, ciaddr) {
            return Vec::new();
        }
        let leases = segment.authority.as_mut().map(|authority| &mut authority.leases);
        leases.and_then(|leases| leases.release(self.now, mac, ciaddr)).map(store).into_iter().collect()
    }

    /// The client speaks to another server.
    fn passed_over(&self, segment: &mut Served, server: Ipv4Addr) -> Vec<Effect> {
        if self.request.kind != Kind::Request {
            return Vec::new();
        }
        if let Some(authority) = &mut segment.authority {
            authority.leases.withdraw(self.request.mac);
        }
        segment.rival(self.now, server, false).map(Effect::Note).into_iter().collect()
    }

    fn discover(&self, segment: &mut Served) -> Vec<Effect> {
        let Some(Authority { pool, leases }) = segment.authority.as_deref_mut() else { return Vec::new() };
        let Ok((address, reclaimed)) = leases.offer(self.now, self.client(leases.asks_for_nodes())) else {
            return segment.filled(self.now, true).map(Effect::Note).into_iter().collect();
        };
        // An offer promises nothing, so it does not wait for the disk.
        let mut effects = vec![self.reply(Some(pool), Answer::Offer(address))];
        effects.extend(reclaimed.map(store));
        effects.extend(self.no_loader());
        if self.request.exchange != DhcpExchange::Os && self.card.is_none() {
            effects.push(self.seen(Some(address), None, true));
        }
        effects.extend(segment.filled(self.now, false).map(Effect::Note));
        effects
    }

    /// Selecting, init-reboot, renewing, rebinding: told apart by options 54 and 50 and ciaddr (RFC 2131, 4.3.2).
    fn request(&self, segment: &mut Served) -> Vec<Effect> {
        let Some(Authority { pool, leases }) = segment.authority.as_deref_mut() else { return Vec::new() };
        let request = self.request;
        let in_use = Some(request.ciaddr).filter(|address| !address.is_unspecified());
        let Some(wanted) = request.requested.or(in_use) else { return Vec::new() };
        let asking = if in_use == Some(wanted) { Asking::Renewal } else { Asking::Anew };
        // From behind a router its frames say nothing of the client: it can keep what it has, and nothing else.
        let only_renews = asking == Asking::Renewal && request.exchange == DhcpExchange::Os;
        if self.routed && !only_renews && fail::defends("dhcp-routed-renewal") {
            return Vec::new();
        }
        let discovered = leases.is_offered(request.mac, wanted);
        match leases.lease(self.now, self.client(leases.asks_for_nodes()), wanted, asking) {
            Ok((lease, changes)) => {
                let mut effects: Vec<Effect> = changes.into_iter().map(store).collect();
                effects.push(match self.card {
                    Some(_) => Effect::Store(DhcpStep::Leased(lease)),
                    // Nothing proves who sent it, so it says nothing of a boot.
                    None if self.routed => Effect::Store(DhcpStep::Leased(lease)),
                    None => self.seen(Some(wanted), Some(lease), discovered),
                });
                effects.push(self.reply(Some(pool), Answer::Ack(wanted)));
                effects.extend(self.no_loader());
                effects
            }
            Err(_) if !pool.is_on_network(wanted) => {
                vec![self.reply(None, Answer::Nak("this address is of another network"))]
            }
            Err(_) => vec![self.reply(None, Answer::Nak("this address is not yours"))],
        }
    }

    fn decline(&self, segment: &mut Served) -> Vec<Effect> {
        let Some(Authority { leases, .. }) = segment.authority.as_deref_mut() else { return Vec::new() };
        let (mac, Some(address)) = (self.request.mac, self.request.requested) else { return Vec::new() };
        if self.routed || self.machines.uses_address(mac, address) {
            return Vec::new();
        }
        let Some(change) = leases.decline(self.now, mac, address) else { return Vec::new() };
        let mut effects = vec![store(change)];
        effects.push(Effect::Note(Note::Declined { segment: segment.name.clone(), address }));
        effects.extend(segment.filled(self.now, false).map(Effect::Note));
        effects
    }

    /// The answer goes to the address that the packet claims, so that must be where it came from, or a relay vouches for it.
    fn inform(&self, segment: &Served) -> Vec<Effect> {
        let request = self.request;
        let sound = request.ciaddr == *self.origin.source.ip() || request.is_relayed();
        let Some(authority) = segment.authority.as_deref() else { return Vec::new() };
        if !sound || request.ciaddr.is_unspecified() {
            return Vec::new();
        }
        vec![self.reply(Some(&authority.pool), Answer::InformAck)]
    }

    /// Another server leases the addresses; firmware and iPXE get a boot file beside its offer.
    fn proxy(&self, segment: &mut Served) -> Vec<Effect> {
        let request = self.request;
        let boots =
            request.exchange == DhcpExchange::Ipxe || matches!(request.vendor, Some(Vendor::Pxe | Vendor::Http));
        let nothing = matches!(self.boot, BootFile::None | BootFile::Missing(_));
        if request.kind == Kind::Discover {
            segment.discoveries.began(self.now, request.mac, request.xid);
        }
        match (request.kind, self.origin.local_port) {
            (Kind::Request, SERVER_PORT) => self.overheard(segment),
            (Kind::Discover | Kind::Request, _) if boots && nothing => self.no_loader().into_iter().collect(),
            (Kind::Discover, SERVER_PORT) if boots => {
                vec![self.reply(None, Answer::ProxyOffer), self.seen(None, None, true)]
            }
            // From behind a relay it comes by unicast, past the relay: nothing proves who sent it.
            (Kind::Request, PROXY_PORT) if boots && self.is_unproven() => vec![self.reply(None, Answer::ProxyAck)],
            (Kind::Request, PROXY_PORT) if boots => {
                vec![self.seen(None, None, true), self.reply(None, Answer::ProxyAck)]
            }
            _ => Vec::new(),
        }
    }

    /// A client takes, or keeps, what another server offers. Not ours to answer, but it is how we learn of an address that we did
    /// not give: capabilities are bound to it, and an operating system may get another one than its firmware had.
    fn overheard(&self, segment: &mut Served) -> Vec<Effect> {
        let request = self.request;
        let other = request.server.filter(|server| !self.is_ours(*server));
        let in_use = Some(request.ciaddr).filter(|address| !address.is_unspecified());
        let note = other.and_then(|server| segment.rival(self.now, server, false));
        let discovered = segment.discoveries.took(self.now, request.mac, request.xid);
        let address = request.requested.or(in_use).filter(|_| !self.routed);
        let seen = address.map(|address| self.seen(Some(address), None, discovered));
        note.map(Effect::Note).into_iter().chain(seen).collect()
    }

    /// True if another Ethernet address sent the packet than it names.
    fn is_unproven(&self) -> bool {
        self.origin.hardware.is_some_and(|sender| sender != self.request.mac)
    }

    fn is_ours(&self, server: Ipv4Addr) -> bool {
        self.own.contains(&server) || server == self.identifier
    }

    /// Who asks. The script step decides which machine a card belongs to; before it, option 97 does (if it is to be trusted).
    fn client(&self, asks_for_nodes: bool) -> Client {
        let mac = self.request.mac;
        let by_uuid = || {
            let hardware = Hardware { uuid: Some(self.request.uuid?), ..Hardware::default() };
            // A UUID is a claim: an approved node's address is for the cards that it was seen with.
            let node = hardware.basis(self.deny)?.node_id();
            (!self.machines.is_approved(node) || !fail::defends("dhcp-claimed-uuid")).then_some(node)
        };
        let node = asks_for_nodes.then(|| self.machines.node_of(mac).or_else(by_uuid)).flatten();
        let keeps_address = self.card.is_none() && self.machines.keeps_address(mac);
        Client { mac, node, vm: self.card.map(|card| card.vm), keeps_address }
    }

    fn reply(&self, pool: Option<&Pool>, answer: Answer) -> Effect {
        let host = self.card.map(|card| card.name.as_str());
        let answerer = Answerer { address: self.address, identifier: self.identifier, pool, host };
        Effect::Reply(Reply {
            packet: answerer.build(self.request, answer, &self.boot),
            to: Destination::of(self.request, answer, self.origin, self.routed),
            via: self.origin.via,
            local_port: self.origin.local_port,
            kind: match answer {
                Answer::Offer(_) | Answer::ProxyOffer => ReplyKind::Offer,
                Answer::Ack(_) | Answer::InformAck | Answer::ProxyAck => ReplyKind::Ack,
                Answer::Nak(_) => ReplyKind::Nak,
            },
        })
    }

    /// `discovered`: the address comes from an exchange that began with a DISCOVER.
    fn seen(&self, address: Option<Ipv4Addr>, lease: Option<Lease>, discovered: bool) -> Effect {
        let Request { mac, exchange, uuid, arch, .. } = *self.request;
        let (relay_port, is_relayed) = (self.request.agent.port.clone(), self.request.is_relayed());
        // What firmware does not say it is, it is by default; iPXE and systems say it or do not.
        let arch = if exchange == DhcpExchange::Firmware { Some(self.request.boot_arch()) } else { arch };
        Effect::Store(DhcpStep::Seen(DhcpSeen {
            mac,
            exchange,
            uuid,
            arch,
            address,
            lease,
            discovered,
            relay_port,
            is_relayed,
        }))
    }

    fn no_loader(&self) -> Option<Effect> {
        match self.boot {
            BootFile::Missing(why) => Some(Effect::Note(Note::NoLoader(why))),
            _ => None,
        }
    }
}

fn store(change: LeaseChange) -> Effect {
    Effect::Store(DhcpStep::Lease(change))
}
