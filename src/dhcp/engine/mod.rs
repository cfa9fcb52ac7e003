//! The engine of the DHCP server (RFC 2131): packets and time are inputs, effects are outputs.
//!
//! | module | content |
//! | --- | --- |
//! | `request_handling` | one request: the reply, the lease, the change to store |
//! | `proxy` | one request in proxy mode: another server leases addresses |
//! | `sender_check` | Ethernet source against chaddr; relay port (option 82) against the node's port |
//! | `client_segment` | the segment of a packet: by interface, relay address or renewed address |
//! | `segment_state` | state of one segment: leases, fill level |
//! | `addresses_in_use` | addresses that machines use without a lease |
//! | `other_servers` | other DHCP servers on a segment, and the warning about a new one |
//! | `started_exchanges` | proxy mode: clients that sent a DISCOVER |
//! | `rate_limit` | packets per second of each sender |
//!
//! One engine owns the lease tables of all segments and decides in the order of arrival. A decision
//! becomes binding when its reply is sent; an acknowledgement is sent only after the user stored
//! its lease.

mod addresses_in_use;
mod client_segment;
mod request_handling;
mod other_servers;
mod proxy;
mod rate_limit;
mod segment_state;
mod sender_check;
mod started_exchanges;

use crate::{
    boot_file::{BootFile, BootSources},
    config::{DhcpMode, Link, Owner, Segment, Setup},
    effect::{Effect, Lease, SegmentStatus},
    nic_records::{KnownNics, NicRecord, RecordChange, RecordChanges},
    packet::{ClientMessage, Origin, PROXY_PORT, ServerMessage, is_probe, probe_mac},
    warning::{DropReason, Warning},
};
use meshd_types::{DenyList, MacAddr, Timestamp};
pub use rate_limit::MAX_PER_SECOND;
use rate_limit::{RateLimiter, Sender};
use request_handling::RequestContext;
use segment_state::{Authority, SegmentState};
use sender_check::{check_ethernet_source, has_privileged_port};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

/// Received packets by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests by [`ClientMessageType`](crate::packet::ClientMessageType), in its order.
    pub requests: [u64; 5],
    /// Dropped packets by [`DropReason`], in its order.
    pub dropped: [u64; DropReason::ALL.len()],
    /// Packets whose sender is not the client.
    pub forged: u64,
    /// Requests through an unknown relay.
    pub foreign_relay: u64,
    /// DISCOVERs that got no address.
    pub refused: u64,
}

/// A DHCP server without sockets.
pub struct Engine {
    /// The address of each interface.
    interface_addresses: Vec<Ipv4Addr>,
    /// The segment of each interface.
    segment_of_interface: Vec<Option<usize>>,
    relays: BTreeMap<Ipv4Addr, usize>,
    /// A relayed segment is in proxy mode: its clients ask the proxy port by unicast, past their
    /// relay.
    relays_proxy: bool,
    segments: Vec<SegmentState>,
    /// All addresses of this server.
    own_addresses: BTreeSet<Ipv4Addr>,
    /// Virtual interfaces of machines, with the NIC that sends for each.
    parents: BTreeMap<MacAddr, MacAddr>,
    known: KnownNics,
    /// NICs whose recorded address another NIC has.
    refused: BTreeSet<MacAddr>,
    /// Warnings about reservations, until they are taken.
    warnings: Vec<Warning>,
    sources: BootSources,
    non_identifying_uuids: DenyList,
    rate_limiter: RateLimiter,
    counters: Counters,
}

impl Engine {
    /// Creates an engine with stored leases.
    pub fn new(setup: Setup, stored: impl IntoIterator<Item = Lease>) -> Self {
        let Setup { interfaces, segments, reservations, nics, non_identifying_uuids, sources } =
            setup;
        let stored: Vec<Lease> = stored.into_iter().collect();
        let index_of =
            |name: &str| segments.iter().position(|segment| segment.interface() == Some(name));
        let segment_of_interface =
            interfaces.iter().map(|interface| index_of(&interface.name)).collect();
        let interface_addresses: Vec<Ipv4Addr> =
            interfaces.into_iter().map(|interface| interface.address).collect();
        let configured = segments.iter().filter_map(|segment| segment.address);
        let own: BTreeSet<Ipv4Addr> =
            interface_addresses.iter().copied().chain(configured).collect();
        let relays =
            segments.iter().enumerate().filter_map(|(index, segment)| match segment.link {
                Link::Relay(relay) => Some((relay, index)),
                Link::Interface(_) => None,
            });
        let redundant = segments.iter().enumerate().flat_map(|(index, segment)| {
            segment.redundant_relays.iter().map(move |relay| (*relay, index))
        });
        let relays = redundant.chain(relays).collect();
        let is_relayed_proxy =
            |segment: &Segment| segment.interface().is_none() && segment.mode == DhcpMode::Proxy;
        let relays_proxy = segments.iter().any(is_relayed_proxy);
        let parents = reservations.iter().filter_map(|reservation| match reservation.owner {
            Owner::Mac(mac) => Some((mac, reservation.parent?)),
            Owner::Node(_) => None,
        });
        let parents = parents.collect();
        let serve = |segment: Segment| SegmentState::new(segment, &own, &reservations);
        let segments = segments.into_iter().map(serve).collect();
        let mut engine = Engine {
            interface_addresses,
            segment_of_interface,
            relays,
            relays_proxy,
            segments,
            own_addresses: own,
            parents,
            known: KnownNics::default(),
            refused: BTreeSet::new(),
            warnings: Vec::new(),
            sources,
            non_identifying_uuids,
            rate_limiter: RateLimiter::default(),
            counters: Counters::default(),
        };
        // Reservations first: a stored lease outside of the range is valid only for a reserved
        // address.
        engine.put_nics(nics);
        engine.segments.iter_mut().for_each(|segment| segment.load(&stored));
        engine.keep_addresses();
        engine
    }

    /// Sets the server address for clients of an interface, which has another address now. No
    /// client gets that address, and the former one is free.
    pub fn set_interface_address(&mut self, index: usize, address: Ipv4Addr) {
        let Some(known) = self.interface_addresses.get_mut(index) else { return };
        *known = address;
        let configured = self.segments.iter().filter_map(|segment| segment.address);
        self.own_addresses = self.interface_addresses.iter().copied().chain(configured).collect();
        let own = self.own_addresses.clone();
        self.authorities().for_each(|authority| authority.leases.set_own_addresses(&own));
    }

    /// Replaces the UUIDs that do not identify a machine.
    pub fn set_non_identifying_uuids(&mut self, uuids: DenyList) {
        self.non_identifying_uuids = uuids;
    }

    /// Applies changes of the user's records: the only way in which the engine learns of machines
    /// and VMs.
    pub fn apply(&mut self, now: Timestamp, changes: RecordChanges) {
        let changes = match changes {
            RecordChanges::Some(changes) => changes,
            RecordChanges::All(all) => {
                let stated: BTreeSet<MacAddr> = all.iter().map(|record| record.mac).collect();
                let gone = self
                    .known
                    .macs()
                    .filter(|mac| !stated.contains(mac))
                    .map(RecordChange::NicRemoved);
                gone.collect::<Vec<_>>()
                    .into_iter()
                    .chain(all.into_iter().map(RecordChange::Nic))
                    .collect()
            }
        };
        let mut nics = Vec::new();
        for change in changes {
            match change {
                RecordChange::Nic(record) => nics.push(record),
                RecordChange::NicRemoved(mac) => nics.push(NicRecord::new(mac)),
                RecordChange::LeaseRemoved { mac, address } => {
                    for authority in self.authorities() {
                        // The user has removed its lease already.
                        let _ = authority.leases.release(now, mac, address);
                    }
                }
            }
        }
        self.put_nics(nics);
    }

    /// Replaces the records of NICs. An address may move from one NIC to another, so reservations
    /// are removed first.
    fn put_nics(&mut self, records: Vec<NicRecord>) {
        let mut changed = BTreeSet::new();
        for record in records {
            let mac = record.mac;
            let is_reserved_anew = self.known.vm(mac) != record.vm.as_ref()
                || self.known.reserved_address(mac) != record.reserved;
            if is_reserved_anew {
                self.authorities().for_each(|authority| authority.leases.remove_nic(mac));
                changed.insert(mac);
            }
            let kept = self.known.keeps_address(mac);
            if record == NicRecord::new(mac) {
                self.known.remove(mac)
            } else {
                self.known.put(record)
            }
            let keeps = self.known.keeps_address(mac);
            if keeps != kept {
                self.authorities().for_each(|authority| authority.leases.keep_address(mac, keeps));
            }
        }
        if !changed.is_empty() {
            self.reserve_addresses(&changed);
        }
    }

    /// Reserves the addresses of changed records, and those that another NIC had until now.
    fn reserve_addresses(&mut self, changed: &BTreeSet<MacAddr>) {
        let refused_before = std::mem::take(&mut self.refused);
        for mac in refused_before.union(changed).copied() {
            let Some(record) = self.known.get(mac) else { continue };
            let vm = record.vm.as_ref().map(|nic| nic.name.clone());
            let address = match &record.vm {
                Some(nic) => nic.address,
                None => record.reserved,
            };
            let Some(address) = address.filter(|address| !self.reserve(mac, *address)) else {
                continue;
            };
            self.refused.insert(mac);
            if changed.contains(&mac) {
                self.warnings.push(match vm {
                    Some(vm) => Warning::NotReserved { vm, address },
                    None => Warning::MachineNotReserved { mac, address },
                });
            }
        }
    }

    /// Keeps the addresses of approved machines in loaded leases.
    fn keep_addresses(&mut self) {
        let Engine { segments, known, .. } = self;
        for authority in segments.iter_mut().filter_map(|segment| segment.authority.as_mut()) {
            authority.leases.keep_addresses(|mac| known.keeps_address(mac));
        }
    }

    fn authorities(&mut self) -> impl Iterator<Item = &mut Authority> {
        self.segments.iter_mut().filter_map(|segment| segment.authority.as_deref_mut())
    }

    /// Reserves an address for a NIC. Returns false if its network cannot reserve it.
    fn reserve(&mut self, mac: MacAddr, address: Ipv4Addr) -> bool {
        let mut all = true;
        for segment in &mut self.segments {
            all &= segment.reserve(mac, address);
        }
        all
    }

    /// Returns new warnings about reservations.
    pub fn take_warnings(&mut self) -> Vec<Warning> {
        std::mem::take(&mut self.warnings)
    }

    /// Handles one packet from the network. Packets that need no reply have no effects.
    pub fn handle(&mut self, now: Timestamp, packet: &[u8], origin: Origin) -> Vec<Effect> {
        if !self.rate_limiter.allow(now, Sender::of(packet, origin)) {
            return self.drop_packet(DropReason::RateLimited, None, origin);
        }
        let Some(request) = ClientMessage::parse(packet) else {
            if ServerMessage::parse(packet).is_none() {
                return self.drop_packet(DropReason::Malformed, None, origin);
            }
            let warning = self.handle_server_packet(now, packet, origin.interface_index);
            return warning.into_iter().collect();
        };
        if !has_privileged_port(&request, origin) {
            return self.drop_packet(DropReason::SourcePort, Some(request.mac), origin);
        }
        self.counters.requests[request.kind as usize] += 1;
        let interface = self.interface_addresses.get(origin.interface_index).copied();
        let Some(interface) = interface.filter(|own| request.mac != probe_mac(*own)) else {
            return Vec::new();
        };
        match self.segment_of(&request, origin) {
            Some(segment) => self.answer(now, &request, origin, interface, segment),
            None => self.report_foreign_relay(&request).into_iter().collect(),
        }
    }

    /// Counts a request that belongs to no segment. Returns a warning if a relay sent it.
    fn report_foreign_relay(&mut self, request: &ClientMessage) -> Option<Effect> {
        request.is_relayed().then(|| {
            self.counters.foreign_relay += 1;
            let selected = request.selected_network();
            Effect::Warn(Warning::ForeignRelay { relay: request.giaddr, selected })
        })
    }

    /// Answers a request in its segment, unless its sender is neither the client nor its relay.
    fn answer(
        &mut self,
        now: Timestamp,
        request: &ClientMessage,
        origin: Origin,
        interface: Ipv4Addr,
        index: usize,
    ) -> Vec<Effect> {
        let routed = !request.is_relayed()
            && self.segment_of_interface.get(origin.interface_index).copied().flatten()
                != Some(index);
        let past_relay = origin.local_port == PROXY_PORT && self.relays_proxy;
        let machine_sender = self.machine_as_relay(request, origin);
        let Some(segment) = self.segments.get_mut(index) else { return Vec::new() };
        // A virtual interface (macvlan) has an address of its own, but its parent may send its
        // packets.
        let is_parent = self
            .parents
            .get(&request.mac)
            .is_some_and(|parent| origin.ethernet_source == Some(*parent));
        // Another server's probe is answered, so that both servers notice each other.
        let is_probe = is_probe(request.mac, request.kind);
        let forged =
            check_ethernet_source(request, origin, routed || past_relay, &segment.relay_macs);
        if let Some(warning) = forged.filter(|_| !is_parent && !is_probe) {
            self.counters.forged += 1;
            return vec![Effect::Warn(warning)];
        }
        if let Some(sender) = machine_sender {
            self.counters.forged += 1;
            return vec![Effect::Warn(Warning::UnknownRelay { mac: request.mac, sender })];
        }
        let address = segment.address.unwrap_or(interface);
        let vm_nic = self.known.vm(request.mac);
        let context = RequestContext {
            now,
            request,
            origin,
            routed,
            past_relay,
            segment_index: index,
            relays: &self.relays,
            address,
            identifier: request.relay.server_id_override.unwrap_or(address),
            own_addresses: &self.own_addresses,
            // A VM boots from its volumes.
            boot: if vm_nic.is_some() {
                BootFile::None
            } else {
                self.sources.boot_file(request, address)
            },
            vm_nic,
            known: &self.known,
            non_identifying_uuids: &self.non_identifying_uuids,
        };
        match context.handle(segment) {
            Ok(mut effects) => {
                if is_probe {
                    segment.forget_probe(request.mac, &mut effects);
                }
                effects
            }
            Err(reason) => self.drop_packet(reason, Some(request.mac), origin),
        }
    }

    fn drop_packet(
        &mut self,
        reason: DropReason,
        mac: Option<MacAddr>,
        origin: Origin,
    ) -> Vec<Effect> {
        self.counters.dropped[reason as usize] += 1;
        vec![Effect::Warn(Warning::Dropped { reason, mac, source: *origin.source.ip() })]
    }

    /// Returns the status of all segments, and forgets silent servers. Call it about once a second.
    pub fn status(&mut self, now: Timestamp) -> Vec<SegmentStatus> {
        self.segments.iter_mut().map(|segment| segment.status(now)).collect()
    }

    /// Returns the counters since the start.
    pub fn counters(&self) -> Counters {
        let refused = self.segments.iter().map(|segment| segment.refusals).sum();
        Counters { refused, ..self.counters }
    }
}
