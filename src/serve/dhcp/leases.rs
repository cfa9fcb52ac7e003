//! The lease table of a segment: which card holds which address. One card, one address; one address, one card.
//!
//! A card's first address follows from its MAC address (hash into the range, then the next free one), so that a rack that is
//! set up anew gets the same addresses again. It keeps the address after its lease ran out, as long as nobody needs it: only
//! when every address is held, the one unused for longest goes to another machine. A reserved address goes to its owner and
//! to nobody else; who has another one keeps that while it renews, and moves when it asks anew.

use super::{
    bits::Bits,
    reserved::{Client, Reserved},
};
use crate::config::{Pool, Reservation};
use crate::fleet::Lease;
use crate::id::{Digest, MacAddr, Timestamp};
use crate::serve::central::{LeaseChange, PoolUse};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    time::Duration,
};

/// How long an offer holds its address. A client that takes it does so within seconds.
pub const OFFER_HOLD: Duration = Duration::from_secs(60);
/// How long an address is left alone after a client found it in use by somebody else.
pub const DECLINED_HOLD: Duration = Duration::from_secs(15 * 60);

/// How firmly an address is held. Ordered: the weaker one goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hold {
    Offered,
    Leased,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: MacAddr,
    hold: Hold,
    until: Timestamp,
}

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
    first: u32,
    size: u32,
    lease: Duration,
    reserved: Reserved,
    /// Addresses of the range that no client can be given from it: held, at rest, reserved, or somebody's.
    busy: Bits,
    /// Of those, the ones that are so for ever.
    fixed: BTreeSet<Ipv4Addr>,
    by_address: BTreeMap<Ipv4Addr, Entry>,
    leased: BTreeMap<MacAddr, Ipv4Addr>,
    offered: BTreeMap<MacAddr, Ipv4Addr>,
    /// Those of the range, without reserved ones. The first one is the first to go.
    by_age: BTreeSet<(Hold, Timestamp, Ipv4Addr)>,
    declined: BTreeMap<Ipv4Addr, Timestamp>,
    /// When the first of them may be used again.
    rested: Timestamp,
    /// Entries of `by_age` that were not over at `counted`, by their hold.
    live: [u32; 2],
    counted: Timestamp,
}

impl LeaseTable {
    /// A table with what was stored. Leases of other networks are left out; of two for one address the later one stays.
    pub fn new(
        pool: &Pool,
        taken: impl IntoIterator<Item = Ipv4Addr>,
        reservations: &[Reservation],
        stored: impl IntoIterator<Item = Lease>,
    ) -> Self {
        let reserved = Reserved::of(pool, reservations);
        let infrastructure = pool.router.iter().chain(&pool.dns).chain(&pool.ntp).copied();
        let fixed = infrastructure.chain([pool.network(), pool.broadcast()]).chain(taken).chain(reserved.addresses());
        let (first, last) = (u32::from(pool.first), u32::from(pool.last));
        let size = last.saturating_sub(first).saturating_add(1);
        let mut table = LeaseTable {
            first,
            size,
            lease: pool.lease,
            busy: Bits::new(size),
            fixed: fixed.filter(|address| pool.holds(*address)).collect(),
            reserved,
            by_address: BTreeMap::new(),
            leased: BTreeMap::new(),
            offered: BTreeMap::new(),
            by_age: BTreeSet::new(),
            declined: BTreeMap::new(),
            rested: Timestamp::from_millis(i64::MAX),
            live: [0; 2],
            counted: Timestamp::from_millis(0),
        };
        table.fixed.iter().for_each(|address| table.busy.set(u32::from(*address).wrapping_sub(first), true));
        let mut stored: Vec<Lease> = stored
            .into_iter()
            .filter(|lease| table.serves(lease.address) || table.reserved.holds(lease.address))
            .collect();
        stored.sort_by_key(|lease| std::cmp::Reverse(lease.expires_at));
        for Lease { mac, address, expires_at } in stored {
            if !table.leased.contains_key(&mac) && !table.by_address.contains_key(&address) {
                table.hold(address, Entry { mac, hold: Hold::Leased, until: expires_at });
            }
        }
        table
    }

    /// True if it matters which machine a card belongs to.
    pub fn asks_for_nodes(&self) -> bool {
        self.reserved.asks_for_nodes()
    }

    /// An address for this client, held for [`OFFER_HOLD`]. The second value is a stored lease that had to go for it.
    pub fn offer(&mut self, now: Timestamp, client: Client) -> Result<(Ipv4Addr, Option<LeaseChange>), Refused> {
        self.advance(now);
        let permitted = |address: &&Ipv4Addr| !self.reserved.denies(**address, client);
        let leased = self.leased.get(&client.mac).filter(permitted).copied();
        let offered = self.offered.get(&client.mac).filter(permitted).copied();
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
        self.hold(address, Entry { mac: client.mac, hold: Hold::Offered, until: now.after(OFFER_HOLD) });
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
        let Client { mac, .. } = client;
        let leased = self.leased.get(&mac).copied();
        let reserved = self.reserved.address_of(client).filter(|address| self.is_open(now, *address, client));
        let own = leased == Some(address) && (asking == Asking::Renewal || reserved.is_none_or(|own| own == address));
        let offered = self.offered.get(&mac) == Some(&address);
        let unbound = leased.is_none() && !self.offered.contains_key(&mac) && reserved.is_none();
        let free = unbound && self.serves(address) && self.is_free(address);
        let allowed = own || offered || reserved == Some(address) || free;
        if !allowed || self.reserved.denies(address, client) {
            return Err(Refused::NotYours);
        }
        let mut changes: Vec<LeaseChange> = self.vacate(address, client).into_iter().collect();
        if let Some(old) = leased.filter(|old| *old != address) {
            changes.extend(self.drop_entry(old).map(|entry| entry.gone(old)));
        }
        self.drop_offer(mac);
        let until = now.after(self.lease);
        self.hold(address, Entry { mac, hold: Hold::Leased, until });
        Ok((Lease { mac, address, expires_at: until }, changes))
    }

    /// The machine gives its address back. It will get the same one again, unless another machine needs it.
    pub fn release(&mut self, now: Timestamp, mac: MacAddr, address: Ipv4Addr) -> Option<LeaseChange> {
        let entry = self.held_by(mac, address)?;
        if entry.hold == Hold::Offered {
            self.drop_entry(address);
            return None;
        }
        let until = now.min(entry.until);
        self.hold(address, Entry { until, ..entry });
        let before = entry.lease(address);
        Some(LeaseChange { after: Some(Lease { expires_at: until, ..before.clone() }), before })
    }

    /// The machine takes another server's offer; a lease that it has stays.
    pub fn withdraw(&mut self, mac: MacAddr) {
        self.drop_offer(mac);
    }

    /// The machine found its address in use: nobody gets it for [`DECLINED_HOLD`]. Only its holder can say so. The value is
    /// a stored lease that ends.
    pub fn decline(&mut self, now: Timestamp, mac: MacAddr, address: Ipv4Addr) -> Option<Option<LeaseChange>> {
        let entry = self.held_by(mac, address)?;
        self.drop_entry(address);
        let until = now.after(DECLINED_HOLD);
        self.declined.insert(address, until);
        self.rested = self.rested.min(until);
        self.mark(address);
        Some((entry.hold == Hold::Leased).then(|| entry.gone(address)))
    }

    /// How many addresses are what, of those that are given to anybody.
    pub fn usage(&mut self, now: Timestamp) -> PoolUse {
        self.advance(now);
        let fixed = u32::try_from(self.fixed.len()).unwrap_or(u32::MAX);
        PoolUse {
            size: self.size.saturating_sub(fixed),
            leased: self.live[1],
            offered: self.live[0],
            declined: u32::try_from(self.declined.len()).unwrap_or(u32::MAX),
        }
    }

    fn held_by(&self, mac: MacAddr, address: Ipv4Addr) -> Option<Entry> {
        self.by_address.get(&address).copied().filter(|entry| entry.mac == mac)
    }

    /// True for an address that is given to anybody.
    fn serves(&self, address: Ipv4Addr) -> bool {
        self.offset(address).is_some() && !self.fixed.contains(&address)
    }

    fn offset(&self, address: Ipv4Addr) -> Option<u32> {
        u32::from(address).checked_sub(self.first).filter(|offset| *offset < self.size)
    }

    fn is_free(&self, address: Ipv4Addr) -> bool {
        !self.by_address.contains_key(&address) && !self.declined.contains_key(&address)
    }

    /// True if a reserved address can be its owner's now: nobody else holds it by right.
    fn is_open(&self, now: Timestamp, address: Ipv4Addr, client: Client) -> bool {
        let held = self.by_address.get(&address).is_some_and(|entry| entry.mac != client.mac && entry.until > now);
        !held && !self.declined.contains_key(&address)
    }

    /// The first free address, counted from the one that the MAC address hashes to.
    fn free(&self, mac: MacAddr) -> Option<Ipv4Addr> {
        let [a, b, c, d, ..] = Digest::of(&mac.0).0;
        let start = u32::from_be_bytes([a, b, c, d]) % self.size;
        self.busy.first_missing(start).map(|offset| Ipv4Addr::from(self.first + offset))
    }

    /// Takes the address that has been unused for longest; one that is still held by right is never taken.
    fn reclaim(&mut self, now: Timestamp) -> Result<(Ipv4Addr, Option<LeaseChange>), Refused> {
        let least = Timestamp::from_millis(0);
        let oldest = |hold| self.by_age.range((hold, least, Ipv4Addr::UNSPECIFIED)..).next().copied();
        let over = |hold| oldest(hold).filter(|(own, until, _)| *own == hold && *until <= now);
        let (.., address) = over(Hold::Offered).or_else(|| over(Hold::Leased)).ok_or(Refused::Exhausted)?;
        let entry = self.drop_entry(address).ok_or(Refused::Exhausted)?;
        Ok((address, (entry.hold == Hold::Leased).then(|| entry.gone(address))))
    }

    /// Takes an address from another holder, whose time is over.
    fn vacate(&mut self, address: Ipv4Addr, client: Client) -> Option<LeaseChange> {
        self.by_address.get(&address).filter(|entry| entry.mac != client.mac)?;
        let entry = self.drop_entry(address)?;
        (entry.hold == Hold::Leased).then(|| entry.gone(address))
    }

    /// Time passes: what is over no longer counts as used, and declined addresses come back.
    fn advance(&mut self, now: Timestamp) {
        if now > self.counted {
            for hold in [Hold::Offered, Hold::Leased] {
                // From the first moment that was not counted yet to the last address of this one.
                let from = (hold, self.counted.after(Duration::from_millis(1)), Ipv4Addr::UNSPECIFIED);
                let over = self.by_age.range(from..=(hold, now, Ipv4Addr::BROADCAST)).count();
                let live = &mut self.live[hold as usize];
                *live = live.saturating_sub(u32::try_from(over).unwrap_or(u32::MAX));
            }
            self.counted = now;
        }
        if now >= self.rested {
            let back: Vec<Ipv4Addr> =
                self.declined.iter().filter(|(_, until)| **until <= now).map(|(address, _)| *address).collect();
            for address in back {
                self.declined.remove(&address);
                self.mark(address);
            }
            let never = Timestamp::from_millis(i64::MAX);
            self.rested = self.declined.values().copied().min().unwrap_or(never);
        }
    }

    fn hold(&mut self, address: Ipv4Addr, entry: Entry) {
        self.drop_entry(address);
        self.by_address.insert(address, entry);
        let by_mac = if entry.hold == Hold::Leased { &mut self.leased } else { &mut self.offered };
        by_mac.insert(entry.mac, address);
        if self.serves(address) {
            self.by_age.insert((entry.hold, entry.until, address));
            self.live[entry.hold as usize] += u32::from(entry.until > self.counted);
        }
        self.mark(address);
    }

    fn drop_offer(&mut self, mac: MacAddr) {
        if let Some(address) = self.offered.get(&mac).copied() {
            self.drop_entry(address);
        }
    }

    fn drop_entry(&mut self, address: Ipv4Addr) -> Option<Entry> {
        let entry = self.by_address.remove(&address)?;
        let by_mac = if entry.hold == Hold::Leased { &mut self.leased } else { &mut self.offered };
        by_mac.remove(&entry.mac);
        if self.by_age.remove(&(entry.hold, entry.until, address)) && entry.until > self.counted {
            let live = &mut self.live[entry.hold as usize];
            *live = live.saturating_sub(1);
        }
        self.mark(address);
        Some(entry)
    }

    /// Brings the map of busy addresses up to date for one of them.
    fn mark(&mut self, address: Ipv4Addr) {
        if let Some(offset) = self.offset(address) {
            self.busy.set(offset, !self.is_free(address) || self.fixed.contains(&address));
        }
    }
}

impl Entry {
    fn lease(&self, address: Ipv4Addr) -> Lease {
        Lease { mac: self.mac, address, expires_at: self.until }
    }

    fn gone(&self, address: Ipv4Addr) -> LeaseChange {
        LeaseChange { before: self.lease(address), after: None }
    }
}
