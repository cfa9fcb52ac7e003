//! The lease table of a segment: which card holds which address. One card, one address; one address, one card.
//!
//! A card's first address follows from its MAC address (hash into the range, then the next free one), so that a rack that is
//! set up anew gets the same addresses again. It keeps the address after its lease ran out, as long as nobody needs it: only
//! when every address is held, the one unused for longest goes to another machine. A reserved address goes to its owner and
//! to nobody else; who has another one keeps that while it renews, and moves when it asks anew.

use super::{
    bits::Bits,
    holds::{HeldAddress, Hold, NicAddresses, OFFER_HOLD},
    reserved::{Client, Reserved},
    resting::Resting,
    slots::Slots,
};
use crate::serve::central::{LeaseChange, PoolUse};
use meshd_config::{Pool, Reservation};
use meshd_model::fleet::Lease;
use meshd_types::{Digest, MacAddr, Timestamp, fail};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    time::Duration,
};

/// How long an address is left alone after a client found it in use by somebody else.
pub const DECLINED_HOLD: Duration = Duration::from_secs(15 * 60);
/// How long after an acknowledgement its client may decline the address: it looks for another user before it takes the address
/// (RFC 5227: 3 to 7 seconds), and never later.
pub const DECLINE_WINDOW: Duration = Duration::from_secs(30);
/// The part of a pool that rests at most, as a divisor; beyond it the address that was declined first is given again.
const DECLINED_PART: u32 = 8;

/// How often what is over is counted.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// No address can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Every address is held.
    Exhausted,
    /// That address is not in the range, or another machine's.
    NotYours,
}

/// How a client asks for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// It took an offer, or started anew with an address that it remembers.
    Anew,
    /// It uses the address now.
    Renewal,
}

/// All leases of one pool.
pub struct LeaseTable {
    lease: Duration,
    reserved: Reserved,
    /// Addresses of meshd, router and the like, which are no client's.
    never: BTreeSet<Ipv4Addr>,
    /// Addresses of the range that no client can be given from it: held, at rest, reserved, or somebody's.
    busy: Bits,
    /// Of those, the ones that are not given to anybody.
    fixed: BTreeSet<Ipv4Addr>,
    /// Who holds each address; beside the range those that are reserved.
    entries: Slots<HeldAddress>,
    by_mac: BTreeMap<MacAddr, NicAddresses>,
    declined: Resting,
    /// Addresses that are given to anybody and whose time was not over at `counted`, by their hold.
    live: [u32; 2],
    counted: Timestamp,
    /// Other addresses count since then.
    recount: bool,
    /// Before this no address falls free by itself.
    none_before: Timestamp,
}

impl LeaseTable {
    /// A table without leases.
    pub fn new(pool: &Pool, taken: impl IntoIterator<Item = Ipv4Addr>, reservations: &[Reservation]) -> Self {
        let reserved = Reserved::of(pool, reservations);
        let infrastructure = pool.router.iter().chain(&pool.dns).chain(&pool.ntp).copied();
        let never: BTreeSet<_> = infrastructure.chain([pool.network(), pool.broadcast()]).chain(taken).collect();
        let fixed = never.iter().copied().chain(reserved.addresses());
        let (first, last) = (u32::from(pool.first), u32::from(pool.last));
        let size = last.saturating_sub(first).saturating_add(1);
        let mut table = LeaseTable {
            lease: pool.lease,
            busy: Bits::new(size),
            fixed: fixed.filter(|address| pool.holds(*address)).collect(),
            never,
            reserved,
            entries: Slots::new(pool.first, pool.last),
            by_mac: BTreeMap::new(),
            declined: Resting::new(usize::try_from(size / DECLINED_PART).unwrap_or(usize::MAX).max(1)),
            live: [0; 2],
            counted: Timestamp::from_millis(0),
            recount: false,
            none_before: Timestamp::from_millis(0),
        };
        table.fixed.iter().for_each(|address| table.busy.set(u32::from(*address).wrapping_sub(first), true));
        table
    }

    /// Takes in what was stored. Leases of other networks are left out; of two for one address the later one stays.
    pub fn load(&mut self, stored: impl IntoIterator<Item = Lease>) {
        let mut stored: Vec<Lease> = stored
            .into_iter()
            .filter(|lease| self.serves(lease.address) || self.reserved.holds(lease.address))
            .collect();
        stored.sort_by_key(|lease| std::cmp::Reverse(lease.expires_at));
        for Lease { mac, address, expires_at, vm } in stored {
            if self.held(mac).leased.is_none() && self.entries.get(address).is_none() {
                // Nobody knows which nodes there are yet: until then everybody keeps what they have.
                let entry =
                    HeldAddress { mac, hold: Hold::Leased, until: expires_at, vm, kept: true, acknowledged: None };
                self.hold(address, entry);
            }
        }
    }

    /// Keeps an address for the card of a virtual machine. Who holds it keeps it until the lease is over, and the card has another one
    /// meanwhile. False where it cannot be kept.
    pub fn keep(&mut self, mac: MacAddr, address: Ipv4Addr) -> bool {
        let kept = !self.never.contains(&address) && self.reserved.add(mac, address);
        if kept && self.entries.offset(address).is_some() {
            self.fixed.insert(address);
            self.refixed(address);
        }
        kept
    }

    /// The virtual machine is gone: what was kept for its card, and what the card holds, is for others.
    pub fn forget(&mut self, mac: MacAddr) {
        if let Some(address) = self.reserved.remove(mac)
            && self.fixed.remove(&address)
        {
            self.refixed(address);
        }
        let NicAddresses { leased, offered } = self.held(mac);
        for address in leased.into_iter().chain(offered) {
            if self.held_by(mac, address).is_some_and(|entry| entry.vm.is_some()) {
                self.drop_entry(address);
            }
        }
    }

    fn refixed(&mut self, address: Ipv4Addr) {
        self.mark(address);
        self.none_before = Timestamp::from_millis(0);
        self.recount = true;
    }

    /// True if it matters which machine a card belongs to.
    pub fn asks_for_nodes(&self) -> bool {
        self.reserved.asks_for_nodes()
    }

    /// An address for this client, held for [`OFFER_HOLD`]. The second value is a stored lease that had to go for it.
    pub fn offer(&mut self, now: Timestamp, client: Client) -> Result<(Ipv4Addr, Option<LeaseChange>), Refused> {
        self.advance(now);
        let permitted = |address: &Ipv4Addr| !self.reserved.denies(*address, client);
        let held = self.held(client.mac);
        let (leased, offered) = (held.leased.filter(permitted), held.offered.filter(permitted));
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
        // An offer is nobody's yet: the lease of a node that has one stays beside it.
        self.hold(address, HeldAddress { mac, hold: Hold::Offered, until, vm, kept: false, acknowledged: None });
        Ok((address, change))
    }

    /// Leases this very address to the client: its own, or a free one, as after a restart between offer and request. The
    /// second value is what had to go for it.
    pub fn lease(
        &mut self,
        now: Timestamp,
        client: Client,
        address: Ipv4Addr,
        asking: Asking,
    ) -> Result<(Lease, Vec<LeaseChange>), Refused> {
        self.advance(now);
        let Client { mac, vm, .. } = client;
        let NicAddresses { leased, offered } = self.held(mac);
        let reserved = self.reserved.address_of(client).filter(|address| self.is_open(now, *address, client));
        let own = leased == Some(address) && (asking == Asking::Renewal || reserved.is_none_or(|own| own == address));
        let unbound = leased.is_none() && offered.is_none() && reserved.is_none();
        let free = unbound && self.serves(address) && self.is_free(address);
        let allowed = own || offered == Some(address) || reserved == Some(address) || free;
        if !allowed || self.reserved.denies(address, client) {
            return Err(Refused::NotYours);
        }
        let mut changes: Vec<LeaseChange> = self.vacate(address, client).into_iter().collect();
        if let Some(old) = leased.filter(|old| *old != address) {
            changes.extend(self.drop_entry(old).map(|entry| entry.gone(old)));
        }
        self.drop_offer(mac);
        let until = now.after(self.lease);
        let acknowledged = (asking == Asking::Anew).then_some(now);
        self.hold(
            address,
            HeldAddress { mac, hold: Hold::Leased, until, vm, kept: client.keeps_address, acknowledged },
        );
        Ok((Lease { mac, address, expires_at: until, vm }, changes))
    }

    /// The machine gives its address back. It will get the same one again, unless another machine needs it.
    pub fn release(&mut self, now: Timestamp, mac: MacAddr, address: Ipv4Addr) -> Option<LeaseChange> {
        let entry = self.held_by(mac, address)?;
        if entry.hold == Hold::Offered {
            self.drop_entry(address);
            return None;
        }
        let until = now.min(entry.until);
        self.hold(address, HeldAddress { until, ..entry });
        let before = entry.lease(address);
        Some(LeaseChange { after: Some(Lease { expires_at: until, ..before.clone() }), before })
    }

    /// True if the address was offered to this machine and not taken yet.
    pub fn is_offered(&self, mac: MacAddr, address: Ipv4Addr) -> bool {
        self.held(mac).offered == Some(address)
    }

    /// From now on these are the network cards of approved nodes, whose addresses are never given to others.
    pub fn keep_addresses(&mut self, cards: &BTreeSet<MacAddr>) {
        self.entries.change_all(|entry| entry.kept = entry.hold == Hold::Leased && cards.contains(&entry.mac));
        self.none_before = Timestamp::from_millis(0);
        self.recount = true;
    }

    /// The machine takes another server's offer; a lease that it has stays.
    pub fn withdraw(&mut self, mac: MacAddr) {
        self.drop_offer(mac);
    }

    /// The machine found its address in use: nobody gets it for [`DECLINED_HOLD`]. Only the machine can say so that the address was
    /// acknowledged to within [`DECLINE_WINDOW`]. Returns the stored lease that ends.
    pub fn decline(&mut self, now: Timestamp, mac: MacAddr, address: Ipv4Addr) -> Option<LeaseChange> {
        let entry = self.held_by(mac, address)?;
        let is_fresh = entry.acknowledged.is_some_and(|at| now.since(at) <= DECLINE_WINDOW);
        if fail::defends("dhcp-decline-after-ack") && !is_fresh {
            return None;
        }
        self.drop_entry(address);
        let until = now.after(DECLINED_HOLD);
        let back = self.declined.add(address, until);
        back.into_iter().chain([address]).for_each(|address| self.mark(address));
        Some(entry.gone(address))
    }

    /// How many addresses are what, of those that are given to anybody. What ran out within the last second may still count.
    pub fn usage(&mut self, now: Timestamp) -> PoolUse {
        self.advance(now);
        let fixed = u32::try_from(self.fixed.len()).unwrap_or(u32::MAX);
        PoolUse {
            size: self.busy.size().saturating_sub(fixed),
            leased: self.live[1],
            offered: self.live[0],
            declined: u32::try_from(self.declined.len()).unwrap_or(u32::MAX),
        }
    }

    fn held_by(&self, mac: MacAddr, address: Ipv4Addr) -> Option<HeldAddress> {
        self.entries.get(address).filter(|entry| entry.mac == mac)
    }

    fn held(&self, mac: MacAddr) -> NicAddresses {
        self.by_mac.get(&mac).copied().unwrap_or_default()
    }

    /// True for an address that is given to anybody.
    fn serves(&self, address: Ipv4Addr) -> bool {
        self.entries.offset(address).is_some() && !self.fixed.contains(&address)
    }

    fn is_free(&self, address: Ipv4Addr) -> bool {
        self.entries.get(address).is_none() && !self.declined.contains(address)
    }

    /// True if a reserved address can be its owner's now: nobody else holds it by right.
    fn is_open(&self, now: Timestamp, address: Ipv4Addr, client: Client) -> bool {
        let held = self.entries.get(address).is_some_and(|entry| entry.mac != client.mac && entry.until > now);
        !held && !self.declined.contains(address)
    }

    /// The first free address, counted from the one that the MAC address hashes to.
    fn free(&self, mac: MacAddr) -> Option<Ipv4Addr> {
        let [a, b, c, d, ..] = Digest::of(&mac.0).0;
        let start = u32::from_be_bytes([a, b, c, d]) % self.busy.size().max(1);
        self.busy.first_missing(start).map(|offset| self.entries.address(offset))
    }

    /// Takes the address that has been unused for longest; one that is still held by right is never taken. It is looked for
    /// among all, which takes a tenth of a millisecond in the largest range, but not again before there can be one.
    fn reclaim(&mut self, now: Timestamp) -> Result<(Ipv4Addr, Option<LeaseChange>), Refused> {
        if now < self.none_before {
            return Err(Refused::Exhausted);
        }
        let keeps = fail::defends("dhcp-node-address");
        let given = || {
            let entries = self.entries.of_range().filter(|(address, _)| self.serves(*address));
            entries.filter_map(|(address, entry)| {
                let reusable = if keeps { entry.reusable_at() } else { Some(entry.until) };
                Some((address, entry, reusable?))
            })
        };
        let first = given().map(|(.., reusable)| reusable).min().unwrap_or(Timestamp::from_millis(i64::MAX));
        if first > now {
            // Changes since then lower it: `hold` and `keep_addresses`.
            self.none_before = first;
            return Err(Refused::Exhausted);
        }
        let over = given().filter(|(.., reusable)| *reusable <= now).map(|(address, entry, _)| (address, entry));
        // What nobody holds by right goes first.
        let oldest = over.min_by_key(|(address, entry)| (entry.until > now, entry.hold, entry.until, *address));
        let (address, _) = oldest.ok_or(Refused::Exhausted)?;
        let entry = self.drop_entry(address).ok_or(Refused::Exhausted)?;
        Ok((address, (entry.hold == Hold::Leased).then(|| entry.gone(address))))
    }

    /// Takes an address from another holder, whose time is over.
    fn vacate(&mut self, address: Ipv4Addr, client: Client) -> Option<LeaseChange> {
        self.entries.get(address).filter(|entry| entry.mac != client.mac)?;
        let entry = self.drop_entry(address)?;
        (entry.hold == Hold::Leased).then(|| entry.gone(address))
    }

    /// Time passes: once a second what is over is counted anew, and declined addresses come back.
    fn advance(&mut self, now: Timestamp) {
        if self.recount || now.since(self.counted) >= COUNT_EVERY {
            self.recount(now);
        }
        self.declined.over(now).into_iter().for_each(|address| self.mark(address));
    }

    fn recount(&mut self, now: Timestamp) {
        (self.counted, self.recount) = (self.counted.max(now), false);
        self.live = [0; 2];
        for (address, entry) in self.entries.of_range() {
            self.live[entry.hold as usize] += u32::from(entry.counts(self.counted) && self.serves(address));
        }
    }

    fn hold(&mut self, address: Ipv4Addr, entry: HeldAddress) {
        self.drop_entry(address);
        self.entries.replace(address, Some(entry));
        *self.by_mac.entry(entry.mac).or_default().place(entry.hold) = Some(address);
        self.none_before = self.none_before.min(entry.reusable_at().unwrap_or(entry.until));
        if self.serves(address) {
            self.live[entry.hold as usize] += u32::from(entry.counts(self.counted));
        }
        self.mark(address);
    }

    fn drop_offer(&mut self, mac: MacAddr) {
        if let Some(address) = self.held(mac).offered {
            self.drop_entry(address);
        }
    }

    fn drop_entry(&mut self, address: Ipv4Addr) -> Option<HeldAddress> {
        let entry = self.entries.replace(address, None)?;
        if let Some(held) = self.by_mac.get_mut(&entry.mac) {
            *held.place(entry.hold) = None;
            if held.leased.is_none() && held.offered.is_none() {
                self.by_mac.remove(&entry.mac);
            }
        }
        if self.serves(address) && entry.counts(self.counted) {
            let live = &mut self.live[entry.hold as usize];
            *live = live.saturating_sub(1);
        }
        self.mark(address);
        Some(entry)
    }

    /// Brings the map of busy addresses up to date for one of them.
    fn mark(&mut self, address: Ipv4Addr) {
        if let Some(offset) = self.entries.offset(address) {
            self.busy.set(offset, !self.is_free(address) || self.fixed.contains(&address));
        }
    }
}
