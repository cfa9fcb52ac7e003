//! The lease table of a segment. One NIC has one address; one address belongs to one NIC.
//!
//! The first address of a NIC is a hash of its MAC address, or the next free one, so that a new
//! server gives a rack the same addresses. A NIC keeps its address after its lease expired, until
//! the pool is full: then the address that was unused longest goes to another NIC. A reserved
//! address goes only to its owner. A client with another address keeps that while it renews, and
//! gets the reserved one when it asks for a new lease.

mod address_choice;

use super::{
    LeaseRequest,
    address_bitmap::AddressBitmap,
    address_map::AddressMap,
    binding::{Binding, BindingState, ByState},
    declined::{DECLINE_WINDOW, DECLINED_HOLD, DeclinedAddresses},
    neighbours::Neighbours,
    pool_level::PoolUse,
    reservations::{Client, Reservations},
};
use crate::{
    config::{Reservation, Subnet},
    effect::{Lease, LeaseChange},
};
use meshd_types::{MacAddr, Timestamp, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    time::Duration,
};

/// At most the n-th part of a pool is held back after declines, and as much for machines without a
/// lease. Beyond it, the address that was declined first is used again.
const HELD_BACK_FRACTION: u32 = 8;

/// Interval of counting expired leases.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Why a client gets no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// All addresses are held.
    Exhausted,
    /// The address is not in the range, or belongs to another client.
    NotYours,
}

/// All leases of one pool.
pub struct LeaseTable {
    lease: Duration,
    reserved: Reservations,
    /// Addresses of routers, relays and the like, which no client gets.
    infrastructure: BTreeSet<Ipv4Addr>,
    /// Addresses of this server, which no client gets either.
    own: BTreeSet<Ipv4Addr>,
    /// Addresses of the range that cannot be offered: held, declined, reserved, or infrastructure.
    busy: AddressBitmap,
    /// Addresses of the range that are reserved, infrastructure or of this server.
    excluded: BTreeSet<Ipv4Addr>,
    /// The holder of each address of the range, and of reserved addresses outside of it.
    entries: AddressMap<Binding>,
    by_mac: BTreeMap<MacAddr, ByState<Option<Ipv4Addr>>>,
    declined: DeclinedAddresses,
    /// Machines that use addresses of the range, as seen on the network.
    neighbours: Neighbours,
    /// Offers and leases of the range that were not expired at `counted`.
    active: ByState<u32>,
    counted: Timestamp,
    /// The counted addresses changed since then.
    recount: bool,
    /// No held address expires before this time.
    none_before: Timestamp,
    /// Last time of [`LeaseTable::bound_times`].
    bounded: Option<Timestamp>,
}

impl LeaseTable {
    /// A table without leases. `own` are the addresses of this server.
    pub fn new(
        subnet: &Subnet,
        relay: Option<Ipv4Addr>,
        own: &BTreeSet<Ipv4Addr>,
        reservations: &[Reservation],
    ) -> Self {
        let reserved = Reservations::of(subnet, reservations);
        let servers = subnet.router.iter().chain(&subnet.dns).chain(&subnet.ntp).copied();
        let infrastructure: BTreeSet<_> =
            servers.chain([subnet.network(), subnet.broadcast()]).chain(relay).collect();
        let excluded = infrastructure.iter().chain(own).copied().chain(reserved.addresses());
        let first = u32::from(subnet.first);
        let last = u32::from(subnet.last);
        let size = last.saturating_sub(first).saturating_add(1);
        let held_back = usize::try_from(size / HELD_BACK_FRACTION).unwrap_or(usize::MAX).max(1);
        let mut table = LeaseTable {
            lease: subnet.lease,
            busy: AddressBitmap::new(size),
            excluded: excluded.filter(|address| subnet.contains(*address)).collect(),
            infrastructure,
            own: own.clone(),
            reserved,
            entries: AddressMap::new(subnet.first, subnet.last),
            by_mac: BTreeMap::new(),
            neighbours: Neighbours::new(held_back),
            declined: DeclinedAddresses::new(held_back),
            active: ByState::default(),
            counted: Timestamp::from_millis(0),
            recount: false,
            none_before: Timestamp::from_millis(0),
            bounded: None,
        };
        table
            .excluded
            .iter()
            .for_each(|address| table.busy.set(u32::from(*address).wrapping_sub(first), true));
        table
    }

    /// Loads stored leases of this network. Of two leases for one address, the later one counts.
    pub fn load(&mut self, stored: impl IntoIterator<Item = Lease>) {
        let mut stored: Vec<Lease> = stored
            .into_iter()
            .filter(|lease| self.serves(lease.address) || self.reserved.contains(lease.address))
            .collect();
        stored.sort_by_key(|lease| std::cmp::Reverse(lease.expires_at));
        for Lease { mac, address, expires_at, vm } in stored {
            if self.addresses_of(mac).leased.is_none() && self.entries.get(address).is_none() {
                // [`LeaseTable::keep_addresses`] decides which are kept.
                let entry = Binding {
                    mac,
                    state: BindingState::Leased,
                    until: expires_at,
                    vm,
                    pinned: true,
                    acknowledged: None,
                };
                self.hold(address, entry);
            }
        }
    }

    /// Reserves an address for the NIC of a VM or machine. A current holder keeps it until its lease
    /// expires; the NIC gets another one meanwhile. Returns false if the address cannot be reserved.
    pub fn reserve(&mut self, mac: MacAddr, address: Ipv4Addr) -> bool {
        let kept = !self.is_infrastructure(address) && self.reserved.add(mac, address);
        if kept && self.entries.offset(address).is_some() {
            self.excluded.insert(address);
            self.update_exclusion(address);
        }
        kept
    }

    /// Removes the reservation of a NIC, and the lease of a removed VM.
    pub fn remove_nic(&mut self, mac: MacAddr) {
        if let Some(address) = self.reserved.remove(mac)
            && self.excluded.remove(&address)
        {
            self.update_exclusion(address);
        }
        let ByState { leased, offered } = self.addresses_of(mac);
        for address in leased.into_iter().chain(offered) {
            if self.held_by(mac, address).is_some_and(|entry| entry.vm.is_some()) {
                self.drop_entry(address);
            }
        }
    }

    /// Replaces the addresses of this server. A client that holds a new one loses its lease.
    pub fn set_own_addresses(&mut self, own: &BTreeSet<Ipv4Addr>) {
        let former = std::mem::replace(&mut self.own, own.clone());
        for address in former.symmetric_difference(own).copied() {
            if self.is_infrastructure(address) {
                self.drop_entry(address);
            }
            if self.entries.offset(address).is_some() {
                if self.is_infrastructure(address) || self.reserved.contains(address) {
                    self.excluded.insert(address);
                } else {
                    self.excluded.remove(&address);
                }
                self.update_exclusion(address);
            }
        }
    }

    fn is_infrastructure(&self, address: Ipv4Addr) -> bool {
        self.infrastructure.contains(&address) || self.own.contains(&address)
    }

    fn update_exclusion(&mut self, address: Ipv4Addr) {
        self.mark(address);
        self.none_before = Timestamp::from_millis(0);
        self.recount = true;
    }

    /// Returns true if an address is reserved for a node, so that the node of a NIC matters.
    pub fn has_node_reservations(&self) -> bool {
        self.reserved.has_node_reservations()
    }

    /// Leases this address to the client: its own, or a free one (after a restart between offer and
    /// request). The second value are the stored leases that were removed for it.
    pub(crate) fn lease(
        &mut self,
        now: Timestamp,
        client: Client,
        address: Ipv4Addr,
        kind: LeaseRequest,
    ) -> Result<(Lease, Vec<LeaseChange>), Refused> {
        self.advance(now);
        let Client { mac, vm, .. } = client;
        let ByState { leased, offered } = self.addresses_of(mac);
        let reserved =
            self.reserved.address_of(client).filter(|address| self.is_open(now, *address, client));
        let own = leased == Some(address)
            && (kind == LeaseRequest::RenewingOrRebinding
                || reserved.is_none_or(|own| own == address));
        let unbound = leased.is_none() && offered.is_none() && reserved.is_none();
        // A client that renews proves that it has the address; another one might take it from its
        // user.
        let is_taken = kind == LeaseRequest::SelectingOrInitReboot
            && self.neighbours.is_used_by_other(address, mac);
        let free = unbound && self.serves(address) && self.is_free(address) && !is_taken;
        let allowed = own || offered == Some(address) || reserved == Some(address) || free;
        if !allowed || self.reserved.denies(address, client) {
            return Err(Refused::NotYours);
        }
        let mut changes: Vec<LeaseChange> = self.vacate(address, client).into_iter().collect();
        if let Some(old) = leased.filter(|old| *old != address) {
            changes.extend(self.drop_entry(old).map(|entry| entry.removal(old)));
        }
        self.drop_offer(mac);
        let until = now.after(self.lease);
        let acknowledged = (kind == LeaseRequest::SelectingOrInitReboot).then_some(now);
        self.hold(
            address,
            Binding {
                mac,
                state: BindingState::Leased,
                until,
                vm,
                pinned: client.keeps_address,
                acknowledged,
            },
        );
        Ok((Lease { mac, address, expires_at: until, vm }, changes))
    }

    /// Ends a lease. The client gets the same address again, unless another client needs it.
    pub fn release(
        &mut self,
        now: Timestamp,
        mac: MacAddr,
        address: Ipv4Addr,
    ) -> Option<LeaseChange> {
        let entry = self.held_by(mac, address)?;
        if entry.state == BindingState::Offered {
            self.drop_entry(address);
            return None;
        }
        let until = now.min(entry.until);
        self.hold(address, Binding { until, ..entry });
        let before = entry.lease(address);
        Some(LeaseChange { after: Some(Lease { expires_at: until, ..before.clone() }), before })
    }

    /// Returns true if the address is offered to this client.
    pub fn is_offered(&self, mac: MacAddr, address: Ipv4Addr) -> bool {
        self.addresses_of(mac).offered == Some(address)
    }

    /// Sets whether the leased address of a NIC is never leased to others.
    pub fn keep_address(&mut self, mac: MacAddr, is_kept: bool) {
        let leased = self.addresses_of(mac).leased;
        let Some((address, entry)) =
            leased.and_then(|address| Some((address, self.entries.get(address)?)))
        else {
            return;
        };
        self.entries.replace(address, Some(Binding { pinned: is_kept, ..entry }));
        self.none_before = Timestamp::from_millis(0);
        self.recount = true;
    }

    /// Sets for all leased addresses whether they are never leased to others.
    pub fn keep_addresses(&mut self, is_kept: impl Fn(MacAddr) -> bool) {
        self.entries.change_all(|entry| {
            entry.pinned = entry.state == BindingState::Leased && is_kept(entry.mac)
        });
        self.none_before = Timestamp::from_millis(0);
        self.recount = true;
    }

    /// Withdraws the offer of a client that accepted another server's offer. Its lease remains.
    pub fn withdraw(&mut self, mac: MacAddr) {
        self.drop_offer(mac);
    }

    /// Holds a declined address back for [`DECLINED_HOLD`], if it was acknowledged to this client
    /// within [`DECLINE_WINDOW`]. Returns the stored lease that ends.
    pub fn decline(
        &mut self,
        now: Timestamp,
        mac: MacAddr,
        address: Ipv4Addr,
    ) -> Option<LeaseChange> {
        let entry = self.held_by(mac, address)?;
        let is_fresh = entry.acknowledged.is_some_and(|at| now.since(at) <= DECLINE_WINDOW);
        if failpoint::defends("dhcp-decline-after-ack") && !is_fresh {
            return None;
        }
        self.drop_entry(address);
        self.hold_back(now, address);
        Some(entry.removal(address))
    }

    /// Counts the addresses of the range. Leases that expired within the last second may still
    /// count.
    pub fn usage(&mut self, now: Timestamp) -> PoolUse {
        self.advance(now);
        let excluded = u32::try_from(self.excluded.len()).unwrap_or(u32::MAX);
        PoolUse {
            size: self.busy.size().saturating_sub(excluded),
            leased: self.active.leased,
            offered: self.active.offered,
            declined: u32::try_from(self.declined.len()).unwrap_or(u32::MAX),
        }
    }

    /// Replaces the machines that are seen on the network with their addresses. Returns those that
    /// claim too many, from now on.
    pub fn set_neighbours(
        &mut self,
        neighbours: impl Iterator<Item = (Ipv4Addr, MacAddr)>,
    ) -> Vec<MacAddr> {
        let entries = &self.entries;
        let in_range = neighbours.filter(|(address, _)| entries.offset(*address).is_some());
        self.neighbours.replace(in_range, |address, mac| {
            entries.get(address).is_some_and(|entry| entry.mac == mac)
        })
    }

    /// Withdraws the offer of an address that another machine than its client answers for, and
    /// holds the address back like a declined one. Returns true if there was such an offer.
    pub fn withdraw_used(&mut self, now: Timestamp, address: Ipv4Addr, by: MacAddr) -> bool {
        let offered = |entry: &Binding| entry.state == BindingState::Offered && entry.mac != by;
        let is_offered =
            self.serves(address) && self.entries.get(address).is_some_and(|entry| offered(&entry));
        if !is_offered || self.neighbours.is_ignored(by) {
            return false;
        }
        self.drop_entry(address);
        self.hold_back(now, address);
        true
    }

    fn hold_back(&mut self, now: Timestamp, address: Ipv4Addr) {
        let back = self.declined.add(address, now.after(DECLINED_HOLD));
        back.into_iter().chain([address]).for_each(|address| self.mark(address));
    }

    fn held_by(&self, mac: MacAddr, address: Ipv4Addr) -> Option<Binding> {
        self.entries.get(address).filter(|entry| entry.mac == mac)
    }

    fn addresses_of(&self, mac: MacAddr) -> ByState<Option<Ipv4Addr>> {
        self.by_mac.get(&mac).copied().unwrap_or_default()
    }

    /// Returns true for an address that any client may get.
    fn serves(&self, address: Ipv4Addr) -> bool {
        self.entries.offset(address).is_some() && !self.excluded.contains(&address)
    }

    fn is_free(&self, address: Ipv4Addr) -> bool {
        self.entries.get(address).is_none() && !self.declined.contains(address)
    }

    /// Returns true if a reserved address can be leased to its owner now: no other client holds it.
    fn is_open(&self, now: Timestamp, address: Ipv4Addr, client: Client) -> bool {
        let is_held_by_other = self
            .entries
            .get(address)
            .is_some_and(|entry| entry.mac != client.mac && entry.until > now);
        let is_held_back = self.declined.contains(address) || self.own.contains(&address);
        !is_held_by_other && !is_held_back
    }

    /// Removes another holder, whose lease or offer expired.
    fn vacate(&mut self, address: Ipv4Addr, client: Client) -> Option<LeaseChange> {
        self.entries.get(address).filter(|entry| entry.mac != client.mac)?;
        let entry = self.drop_entry(address)?;
        (entry.state == BindingState::Leased).then(|| entry.removal(address))
    }

    /// Advances the time: counts once a second, and ends holds of declined addresses.
    fn advance(&mut self, now: Timestamp) {
        self.bound_times(now);
        if self.recount || now.since(self.counted) >= COUNT_EVERY {
            self.recount(now);
        }
        self.declined.take_expired(now).into_iter().for_each(|address| self.mark(address));
    }

    /// Ends stored leases, and all times that a clock in the future has set, as if they began now.
    /// Otherwise an address would be held until the clock is there again.
    fn bound_times(&mut self, now: Timestamp) {
        let went_back = self.bounded.is_none_or(|before| now < before);
        self.bounded = Some(now);
        if !went_back {
            return;
        }
        let latest = now.after(self.lease);
        self.entries.change_all(|entry| {
            entry.until = entry.until.min(latest);
            entry.acknowledged = entry.acknowledged.map(|at| at.min(now));
        });
        self.declined.bound(now.after(DECLINED_HOLD));
        (self.none_before, self.counted, self.recount) =
            (Timestamp::from_millis(0), Timestamp::from_millis(0), true);
    }

    fn recount(&mut self, now: Timestamp) {
        (self.counted, self.recount) = (self.counted.max(now), false);
        self.active = ByState::default();
        for (address, entry) in self.entries.of_range() {
            *self.active.of(entry.state) +=
                u32::from(entry.counts(self.counted) && self.serves(address));
        }
    }

    fn hold(&mut self, address: Ipv4Addr, entry: Binding) {
        self.drop_entry(address);
        self.entries.replace(address, Some(entry));
        *self.by_mac.entry(entry.mac).or_default().of(entry.state) = Some(address);
        self.none_before = self.none_before.min(entry.reusable_at().unwrap_or(entry.until));
        if self.serves(address) {
            *self.active.of(entry.state) += u32::from(entry.counts(self.counted));
        }
        self.mark(address);
    }

    fn drop_offer(&mut self, mac: MacAddr) {
        if let Some(address) = self.addresses_of(mac).offered {
            self.drop_entry(address);
        }
    }

    fn drop_entry(&mut self, address: Ipv4Addr) -> Option<Binding> {
        let entry = self.entries.replace(address, None)?;
        if let Some(addresses) = self.by_mac.get_mut(&entry.mac) {
            *addresses.of(entry.state) = None;
            if addresses.leased.is_none() && addresses.offered.is_none() {
                self.by_mac.remove(&entry.mac);
            }
        }
        if self.serves(address) && entry.counts(self.counted) {
            let active = self.active.of(entry.state);
            *active = active.saturating_sub(1);
        }
        self.mark(address);
        Some(entry)
    }

    /// Updates the bitmap of busy addresses.
    fn mark(&mut self, address: Ipv4Addr) {
        if let Some(offset) = self.entries.offset(address) {
            self.busy.set(offset, !self.is_free(address) || self.excluded.contains(&address));
        }
    }
}
