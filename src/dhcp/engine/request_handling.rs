//! One request of a client in its segment: decides the reply, the lease and what to store.

use super::segment_state::{Authority, SegmentState};
use crate::{
    boot_file::BootFile,
    config::{DhcpMode, Subnet},
    effect::{
        Change, ClientExchange, Effect, LastHop, Lease, LeaseChange, OtherServer, Reply, ReplyKind,
    },
    lease::{Client, LeaseRequest},
    nic_records::{KnownNics, ReservedNic},
    packet::{
        ClientKind, ClientMessage, ClientMessageType, Destination, Origin, ReplyBuilder,
        ReplyContent, SERVER_PORT,
    },
    warning::{DropReason, Warning},
};
use meshd_types::{DenyList, Hardware, Timestamp, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

/// A request and the context of its reply.
pub(crate) struct RequestContext<'a> {
    pub(crate) now: Timestamp,
    pub(crate) request: &'a ClientMessage,
    pub(crate) origin: Origin,
    /// The request arrived by unicast through a router.
    pub(crate) routed: bool,
    /// The request may have passed a relay that forwards it unchanged.
    pub(crate) past_relay: bool,
    /// Index of the client's segment.
    pub(crate) segment_index: usize,
    /// The segments behind relays.
    pub(crate) relays: &'a BTreeMap<Ipv4Addr, usize>,
    /// The address of the boot services.
    pub(crate) address: Ipv4Addr,
    /// The server identifier for the client.
    pub(crate) identifier: Ipv4Addr,
    /// All addresses of this server.
    pub(crate) own_addresses: &'a BTreeSet<Ipv4Addr>,
    pub(crate) boot: BootFile,
    /// The NIC, if it belongs to a VM: it gets an address, but no boot file.
    pub(crate) vm_nic: Option<&'a ReservedNic>,
    /// UUIDs that do not identify a machine.
    pub(crate) non_identifying_uuids: &'a DenyList,
    pub(crate) known: &'a KnownNics,
}

impl RequestContext<'_> {
    /// Handles the request.
    pub(crate) fn handle(&self, segment: &mut SegmentState) -> Result<Vec<Effect>, DropReason> {
        if let Some(warning) = self.relay_port_mismatch() {
            return Ok(vec![Effect::Warn(warning)]);
        }
        match segment.mode {
            DhcpMode::Authoritative if self.origin.local_port == SERVER_PORT => {
                self.handle_authoritative(segment)
            }
            DhcpMode::Proxy if self.vm_nic.is_none() => Ok(self.handle_proxy(segment)),
            DhcpMode::Authoritative | DhcpMode::Proxy | DhcpMode::Off => Ok(Vec::new()),
        }
    }

    fn handle_authoritative(&self, segment: &mut SegmentState) -> Result<Vec<Effect>, DropReason> {
        let request = self.request;
        if let Some(server) = request.server
            && !self.is_ours(server)
        {
            return Ok(self.request_to_other_server(segment, server));
        }
        match request.kind {
            ClientMessageType::Discover => Ok(self.discover(segment)),
            ClientMessageType::Request => self.request(segment),
            ClientMessageType::Decline => self.decline(segment),
            ClientMessageType::Release => self.release(segment),
            ClientMessageType::Inform => self.inform(segment),
        }
    }

    /// Ends a lease, unless its machine uses the address: then the packet is forged or wrong.
    fn release(&self, segment: &mut SegmentState) -> Result<Vec<Effect>, DropReason> {
        let ClientMessage { mac, ciaddr, .. } = *self.request;
        if failpoint::defends("dhcp-release-in-use")
            && self.known.uses_address(self.now, mac, ciaddr)
        {
            return Err(DropReason::Unfounded);
        }
        let Some(Authority { leases, .. }) = segment.authority.as_deref_mut() else {
            return Ok(Vec::new());
        };
        let is_offered = leases.is_offered(mac, ciaddr);
        match leases.release(self.now, mac, ciaddr) {
            None if !is_offered => Err(DropReason::Unfounded),
            change => Ok(change.map(store).into_iter().collect()),
        }
    }

    /// Handles a packet of a client to another server.
    fn request_to_other_server(&self, segment: &mut SegmentState, server: Ipv4Addr) -> Vec<Effect> {
        if self.request.kind != ClientMessageType::Request {
            return Vec::new();
        }
        if let Some(authority) = &mut segment.authority {
            authority.leases.withdraw(self.request.mac);
        }
        segment
            .record_other_server(OtherServer { address: server, proxy: false, last: self.now })
            .map(Effect::Warn)
            .into_iter()
            .collect()
    }

    fn discover(&self, segment: &mut SegmentState) -> Vec<Effect> {
        let Some(Authority { subnet, leases }) = segment.authority.as_deref_mut() else {
            return Vec::new();
        };
        let Ok(offered) = leases.offer(
            self.now,
            self.client(leases.has_node_reservations()),
            self.request.requested,
        ) else {
            return segment.refuse_address(self.now).map(Effect::Warn).into_iter().collect();
        };
        let address = offered.address;
        // An offer is not binding, so it does not wait until it is stored.
        let mut effects = vec![self.reply(Some(subnet), ReplyContent::Offer(address))];
        effects.extend(offered.removed.map(store));
        effects.extend(self.no_loader_warning());
        if self.request.client != ClientKind::Other && self.vm_nic.is_none() {
            effects.push(self.observed_exchange(Some(address), None, true));
        }
        if offered.is_new && !self.request.is_relayed() {
            segment.unproven_offers.push(address);
        }
        effects.extend(segment.update_level(self.now).map(Effect::Warn));
        effects
    }

    /// Handles selecting, init-reboot, renewing and rebinding. Options 50 and 54 and ciaddr
    /// distinguish them (RFC 2131, 4.3.2).
    fn request(&self, segment: &mut SegmentState) -> Result<Vec<Effect>, DropReason> {
        let Some(Authority { subnet, leases }) = segment.authority.as_deref_mut() else {
            return Ok(Vec::new());
        };
        let request = self.request;
        let in_use = Some(request.ciaddr).filter(|address| !address.is_unspecified());
        let wanted = request.requested.or(in_use).ok_or(DropReason::NoAddress)?;
        let kind = if in_use == Some(wanted) {
            LeaseRequest::RenewingOrRebinding
        } else {
            LeaseRequest::SelectingOrInitReboot
        };
        // Behind a router, the Ethernet sender does not prove the client. It may only renew its
        // lease.
        let only_renews =
            kind == LeaseRequest::RenewingOrRebinding && request.client == ClientKind::Other;
        if self.routed && !only_renews && failpoint::defends("dhcp-routed-renewal") {
            return Err(DropReason::UnprovenSender);
        }
        let discovered = leases.is_offered(request.mac, wanted);
        let client = self.client(leases.has_node_reservations());
        Ok(match leases.lease(self.now, client, wanted, kind) {
            Ok((lease, changes)) => {
                let mut effects: Vec<Effect> = changes.into_iter().map(store).collect();
                effects.push(match self.vm_nic {
                    Some(_) => Effect::Store(Change::LeaseGranted(lease)),
                    // The sender is not proven, so the lease is no sign of a boot.
                    None if self.routed => Effect::Store(Change::LeaseGranted(lease)),
                    None => self.observed_exchange(Some(wanted), Some(lease), discovered),
                });
                effects.push(self.reply(Some(subnet), ReplyContent::Ack(wanted)));
                effects.extend(self.no_loader_warning());
                effects
            }
            Err(_) if !subnet.is_on_network(wanted) => {
                vec![self.reply(None, ReplyContent::Nak("this address is of another network"))]
            }
            Err(_) => vec![self.reply(None, ReplyContent::Nak("this address is not yours"))],
        })
    }

    fn decline(&self, segment: &mut SegmentState) -> Result<Vec<Effect>, DropReason> {
        let Some(Authority { leases, .. }) = segment.authority.as_deref_mut() else {
            return Ok(Vec::new());
        };
        let mac = self.request.mac;
        let address = self.request.requested.ok_or(DropReason::NoAddress)?;
        if self.routed || self.known.uses_address(self.now, mac, address) {
            return Err(DropReason::Unfounded);
        }
        let change = leases.decline(self.now, mac, address).ok_or(DropReason::Unfounded)?;
        let mut effects = vec![store(change)];
        effects.push(Effect::Warn(Warning::AddressInUse {
            segment: segment.name.clone(),
            address,
            by: None,
        }));
        effects.extend(segment.update_level(self.now).map(Effect::Warn));
        Ok(effects)
    }

    /// Replies to a client that has an address: the sender of the packet, or a client behind a
    /// relay. Old clients leave ciaddr empty.
    fn inform(&self, segment: &SegmentState) -> Result<Vec<Effect>, DropReason> {
        let ciaddr = self.request.ciaddr;
        let source = *self.origin.source.ip();
        let is_own = (ciaddr == source || ciaddr.is_unspecified()) && !source.is_unspecified();
        let Some(authority) = segment.authority.as_deref() else { return Ok(Vec::new()) };
        if !is_own && !self.request.is_relayed() {
            return Err(DropReason::UnprovenSender);
        }
        Ok(vec![self.reply(Some(&authority.subnet), ReplyContent::InformAck)])
    }

    pub(super) fn is_ours(&self, server: Ipv4Addr) -> bool {
        self.own_addresses.contains(&server) || server == self.identifier
    }

    /// Returns the client. Option 97 identifies the machine of a NIC that was not seen before.
    fn client(&self, is_node_needed: bool) -> Client {
        let mac = self.request.mac;
        let by_uuid = || {
            let hardware = Hardware { uuid: Some(self.request.uuid?), ..Hardware::default() };
            // A UUID can be forged: the address of an approved node is only for its known NICs.
            let node = hardware.basis(self.non_identifying_uuids)?.node_id();
            (!self.known.is_approved(node) || !failpoint::defends("dhcp-claimed-uuid"))
                .then_some(node)
        };
        let node = is_node_needed.then(|| self.known.node_of(mac).or_else(by_uuid)).flatten();
        let keeps_address = self.vm_nic.is_none() && self.known.keeps_address(mac);
        Client { mac, node, vm: self.vm_nic.map(|nic| nic.vm), keeps_address }
    }

    pub(super) fn reply(&self, subnet: Option<&Subnet>, content: ReplyContent) -> Effect {
        let host = self.vm_nic.map(|nic| nic.name.as_str());
        let builder =
            ReplyBuilder { address: self.address, identifier: self.identifier, subnet, host };
        let to = Destination::of(self.request, content, self.origin, self.routed);
        let is_local = !self.routed && !self.request.is_relayed();
        let is_sender = matches!(to, Destination::Ip(to) if to.ip() == self.origin.source.ip());
        let last_hop = match self.origin.ethernet_source {
            Some(mac) if is_local => is_sender.then_some(LastHop::Client(mac)),
            mac => mac.map(LastHop::Router),
        };
        Effect::Reply(Reply {
            packet: builder.build(self.request, content, &self.boot),
            to,
            last_hop,
            interface_index: self.origin.interface_index,
            local_port: self.origin.local_port,
            kind: match content {
                ReplyContent::Offer(_) | ReplyContent::ProxyOffer => ReplyKind::Offer,
                ReplyContent::Ack(_) | ReplyContent::InformAck | ReplyContent::ProxyAck => {
                    ReplyKind::Ack
                }
                ReplyContent::Nak(_) => ReplyKind::Nak,
            },
        })
    }

    /// Returns the exchange to store. `discovered`: it began with a DISCOVER.
    pub(super) fn observed_exchange(
        &self,
        address: Option<Ipv4Addr>,
        lease: Option<Lease>,
        discovered: bool,
    ) -> Effect {
        let ClientMessage { mac, client, uuid, arch, kind, secs, .. } = *self.request;
        let relay_port = self.relay_port();
        let is_relayed = self.request.is_relayed();
        Effect::Store(Change::Exchange(ClientExchange {
            mac,
            client,
            uuid,
            arch,
            is_discover: kind == ClientMessageType::Discover,
            secs,
            address,
            lease,
            discovered,
            relay_port,
            is_relayed,
            bmc: self.request.bmc.clone(),
        }))
    }

    pub(super) fn no_loader_warning(&self) -> Option<Effect> {
        match self.boot {
            BootFile::Missing(why) => Some(Effect::Warn(Warning::NoLoader(why))),
            _ => None,
        }
    }
}

fn store(change: LeaseChange) -> Effect {
    Effect::Store(Change::LeaseChanged(change))
}
