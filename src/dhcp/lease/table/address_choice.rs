//! The address that a DHCPDISCOVER is offered: the reserved one, the client's own, a free one, or the one that was unused longest.

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

impl LeaseTable {
    /// Offers an address, held for [`OFFER_HOLD`]. The second value is a stored lease that was removed for it.
    pub fn offer(&mut self, now: Timestamp, client: Client) -> Result<(Ipv4Addr, Option<LeaseChange>), Refused> {
        self.advance(now);
        let permitted = |address: &Ipv4Addr| !self.reserved.denies(*address, client);
        let own = self.addresses_of(client.mac);
        let (leased, offered) = (own.leased.filter(permitted), own.offered.filter(permitted));
        let reserved = self.reserved.address_of(client).filter(|address| self.is_open(now, *address, client));
        let wanted = reserved.or(leased).or(offered);
        if let Some(own) = leased.filter(|own| wanted == Some(*own)) {
            return Ok((own, None));
        }
        let (address, change) = match wanted.or_else(|| self.free(client.mac)) {
            Some(address) => (address, self.vacate(address, client)),
            None => self.reclaim(now)?,
        };
        self.drop_offer(client.mac);
        let Client { mac, vm, .. } = client;
        let until = now.after(OFFER_HOLD);
        // An offer does not replace the lease of the same client.
        self.hold(address, Binding { mac, state: BindingState::Offered, until, vm, pinned: false, acknowledged: None });
        Ok((address, change))
    }

    /// Returns the first free address from the hash of the MAC address on.
    fn free(&self, mac: MacAddr) -> Option<Ipv4Addr> {
        let [a, b, c, d, ..] = Digest::of(&mac.0).0;
        let start = u32::from_be_bytes([a, b, c, d]) % self.busy.size().max(1);
        self.busy.first_missing(start).map(|offset| self.entries.address(offset))
    }

    /// Reclaims the address that was unused longest. An address that is still held is never reclaimed. The search takes a tenth of a
    /// millisecond in the largest range; after a failure it is not repeated before an address can expire.
    fn reclaim(&mut self, now: Timestamp) -> Result<(Ipv4Addr, Option<LeaseChange>), Refused> {
        if now < self.none_before {
            return Err(Refused::Exhausted);
        }
        let keeps_node_addresses = failpoint::defends("dhcp-node-address");
        let candidates = || {
            let entries = self.entries.of_range().filter(|(address, _)| self.serves(*address));
            entries.filter_map(|(address, entry)| {
                let reusable = if keeps_node_addresses { entry.reusable_at() } else { Some(entry.until) };
                Some((address, entry, reusable?))
            })
        };
        let first = candidates().map(|(.., reusable)| reusable).min().unwrap_or(Timestamp::from_millis(i64::MAX));
        if first > now {
            // Changes since then lower it: `hold` and `keep_addresses`.
            self.none_before = first;
            return Err(Refused::Exhausted);
        }
        let expired =
            candidates().filter(|(.., reusable)| *reusable <= now).map(|(address, entry, _)| (address, entry));
        // Expired addresses first.
        let oldest = expired.min_by_key(|(address, entry)| (entry.until > now, entry.state, entry.until, *address));
        let (address, _) = oldest.ok_or(Refused::Exhausted)?;
        let entry = self.drop_entry(address).ok_or(Refused::Exhausted)?;
        Ok((address, (entry.state == BindingState::Leased).then(|| entry.gone(address))))
    }
}
