//! Addresses that machines use without a lease: the user reports what it sees on the network,
//! beside the packets.

use super::Engine;
use crate::{effect::Effect, warning::Warning};
use meshd_types::{MacAddr, Timestamp};
use std::net::Ipv4Addr;

/// Most offered addresses of a segment that wait for a probe. Offers beyond it are not probed.
const MAX_UNPROVEN: usize = 64;
/// Most warnings of one look at the network.
const MAX_WARNINGS: usize = 4;

/// Offered addresses that nobody had before, until the user probes them.
#[derive(Debug, Default)]
pub(crate) struct UnprovenOffers(Vec<Ipv4Addr>);

impl UnprovenOffers {
    pub(crate) fn push(&mut self, address: Ipv4Addr) {
        if self.0.len() < MAX_UNPROVEN {
            self.0.push(address);
        }
    }
}

impl Engine {
    /// Returns at most this many new offers on the segment of an interface, for which the user
    /// should ask the network (ARP). The others stay.
    pub fn take_unproven_offers(&mut self, interface_index: usize, most: usize) -> Vec<Ipv4Addr> {
        let index = self.segment_of_interface.get(interface_index).copied().flatten();
        let segment = index.and_then(|index| self.segments.get_mut(index));
        let Some(UnprovenOffers(offers)) = segment.map(|segment| &mut segment.unproven_offers)
        else {
            return Vec::new();
        };
        offers.drain(..most.min(offers.len())).collect()
    }

    /// Replaces the machines that are known to use addresses on the segment of an interface. Their
    /// addresses are not offered to others while there are other ones. Returns a warning for each
    /// machine that claims too many.
    pub fn set_neighbours(
        &mut self,
        interface_index: usize,
        neighbours: impl Iterator<Item = (Ipv4Addr, MacAddr)>,
    ) -> Vec<Effect> {
        let index = self.segment_of_interface.get(interface_index).copied().flatten();
        let Some(segment) = index.and_then(|index| self.segments.get_mut(index)) else {
            return Vec::new();
        };
        let Some(authority) = segment.authority.as_mut() else { return Vec::new() };
        let ignored = authority.leases.set_neighbours(neighbours).into_iter().take(MAX_WARNINGS);
        ignored
            .map(|by| {
                Effect::Warn(Warning::ManyAddressesClaimed { segment: segment.name.clone(), by })
            })
            .collect()
    }

    /// Handles the answer of a machine for an address. If the address is offered to another one,
    /// the offer ends: its client gets a NAK, and then another address.
    pub fn handle_arp_reply(
        &mut self,
        now: Timestamp,
        interface_index: usize,
        address: Ipv4Addr,
        by: MacAddr,
    ) -> Option<Effect> {
        let index = self.segment_of_interface.get(interface_index).copied().flatten()?;
        let segment = self.segments.get_mut(index)?;
        let is_withdrawn = segment.authority.as_mut()?.leases.withdraw_used(now, address, by);
        let warning =
            || Warning::AddressInUse { segment: segment.name.clone(), address, by: Some(by) };
        is_withdrawn.then(|| Effect::Warn(warning()))
    }
}
