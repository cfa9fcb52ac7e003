//! The address that a DHCPDISCOVER is offered (RFC 2131, 4.3.1): the reserved one, the client's
//! own, the requested one if it is free, another free one, or the one that was unused longest. An
//! address that another machine uses is the last choice.

use super::{
    super::{
        binding::{Binding, BindingState, OFFER_HOLD},
        reservations::Client,
    },
    LeaseTable, Refused,
};
use crate::effect::LeaseChange;
use meshd_types::{Digest, MacAddr, Timestamp, failpoint};
use std::net::Ipv4Addr;

/// An address for a client.
pub(crate) struct Offered {
    pub(crate) address: Ipv4Addr,
    /// The stored lease that was removed for it.
    pub(crate) removed: Option<LeaseChange>,
    /// The client did not have the address before, so another machine might use it.
    pub(crate) is_new: bool,
}

impl LeaseTable {
    /// Offers an address, held for [`OFFER_HOLD`]. `requested`: option 50.
    pub fn offer(
        &mut self,
        now: Timestamp,
        client: Client,
        requested: Option<Ipv4Addr>,
    ) -> Result<Offered, Refused> {
        self.advance(now);
        let permitted = |address: &Ipv4Addr| !self.reserved.denies(*address, client);
        let own = self.addresses_of(client.mac);
        let leased = own.leased.filter(permitted);
        let offered = own.offered.filter(permitted);
        let unused = |address: &Ipv4Addr| !self.neighbours.is_used_by_other(*address, client.mac);
        let reserved =
            self.reserved.address_of(client).filter(|address| self.is_open(now, *address, client));
        let wanted = reserved.or(leased);
        if let Some(own) = leased.filter(|own| wanted == Some(*own)) {
            return Ok(Offered { address: own, removed: None, is_new: false });
        }
        let requested = requested.filter(|address| self.may_choose(now, *address, client.mac));
        let known = wanted.or(requested.filter(permitted)).or(offered.filter(unused));
        let (address, removed) = match known {
            Some(address) => (address, self.vacate(address, client)),
            None => self
                .choose(now, client.mac)
                .or_else(|refused| Ok((offered.ok_or(refused)?, None)))?,
        };
        let is_new = own.offered != Some(address);
        self.drop_offer(client.mac);
        let Client { mac, vm, .. } = client;
        let until = now.after(OFFER_HOLD);
        // An offer does not replace the lease of the same client.
        self.hold(
            address,
            Binding {
                mac,
                state: BindingState::Offered,
                until,
                vm,
                pinned: false,
                acknowledged: None,
            },
        );
        Ok(Offered { address, removed, is_new })
    }

    /// Returns true for an address that nobody has or uses.
    fn may_choose(&self, now: Timestamp, address: Ipv4Addr, mac: MacAddr) -> bool {
        let is_old_offer =
            |entry: Binding| entry.state == BindingState::Offered && entry.until <= now;
        let is_free = self.is_free(address) || self.entries.get(address).is_some_and(is_old_offer);
        self.serves(address) && is_free && !self.neighbours.is_used_by_other(address, mac)
    }

    /// Chooses an address for a client without one. Addresses that other machines use come last: a
    /// claim by ARP is not proven, and must not close the pool.
    fn choose(
        &mut self,
        now: Timestamp,
        mac: MacAddr,
    ) -> Result<(Ipv4Addr, Option<LeaseChange>), Refused> {
        if let Some(address) = self.free(mac) {
            return Ok((address, None));
        }
        if let Ok(chosen) =
            self.reclaim(now, |table, address| !table.neighbours.is_used_by_other(address, mac))
        {
            return Ok(chosen);
        }
        match self.busy.first_missing(0) {
            Some(offset) => Ok((self.entries.address(offset), None)),
            None => self.reclaim(now, |_, _| true),
        }
    }

    /// Returns the first free address from the hash of the MAC address on that no other machine
    /// uses.
    fn free(&self, mac: MacAddr) -> Option<Ipv4Addr> {
        let [a, b, c, d, ..] = Digest::of(&mac.0).0;
        let mut start = u32::from_be_bytes([a, b, c, d]) % self.busy.size().max(1);
        // Each step passes one neighbour; with one step more, all free addresses are used.
        for _ in 0..=self.neighbours.len() {
            let offset = self.busy.first_missing(start)?;
            let address = self.entries.address(offset);
            if !self.neighbours.is_used_by_other(address, mac) {
                return Some(address);
            }
            start = (offset + 1) % self.busy.size().max(1);
        }
        None
    }

    /// Reclaims the address that was unused longest. An address that is still held is never
    /// reclaimed. The search takes a tenth of a millisecond in the largest range; after a failure
    /// it is not repeated before an address can expire.
    fn reclaim(
        &mut self,
        now: Timestamp,
        permits: impl Fn(&Self, Ipv4Addr) -> bool,
    ) -> Result<(Ipv4Addr, Option<LeaseChange>), Refused> {
        if now < self.none_before {
            return Err(Refused::Exhausted);
        }
        let keeps_node_addresses = failpoint::defends("dhcp-node-address");
        let candidates = || {
            let entries = self.entries.of_range().filter(|(address, _)| self.serves(*address));
            entries.filter_map(|(address, entry)| {
                let reusable =
                    if keeps_node_addresses { entry.reusable_at() } else { Some(entry.until) };
                Some((address, entry, reusable?))
            })
        };
        let first = candidates()
            .map(|(.., reusable)| reusable)
            .min()
            .unwrap_or(Timestamp::from_millis(i64::MAX));
        if first > now {
            // Changes since then lower it: `hold` and `keep_addresses`.
            self.none_before = first;
            return Err(Refused::Exhausted);
        }
        let expired = candidates()
            .filter(|(address, _, reusable)| *reusable <= now && permits(self, *address))
            .map(|(address, entry, _)| (address, entry));
        // Expired addresses first.
        let oldest = expired
            .min_by_key(|(address, entry)| (entry.until > now, entry.state, entry.until, *address));
        let (address, _) = oldest.ok_or(Refused::Exhausted)?;
        let entry = self.drop_entry(address).ok_or(Refused::Exhausted)?;
        Ok((address, (entry.state == BindingState::Leased).then(|| entry.removal(address))))
    }
}
