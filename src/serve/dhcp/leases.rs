//! The lease table: which MAC address holds which address of the pool. One machine, one address; one address, one machine.
//!
//! A machine's first address follows from its MAC address (hash into the pool, then the next free one), so that a rack that
//! is set up anew gets the same addresses again. It keeps the address after its lease ran out, as long as nobody needs it:
//! only when every address is held, the one unused for longest goes to another machine.

use super::reply::netmask;
use crate::config::Pool;
use crate::fleet::Lease;
use crate::id::{Digest, MacAddr, Timestamp};
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
    address: Ipv4Addr,
    hold: Hold,
    until: Timestamp,
}

/// A change of what is stored. It is made only if `before` is still what is stored, so that it cannot undo a newer one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseChange {
    /// As it was.
    pub before: Lease,
    /// As it is; `None`: forgotten.
    pub after: Option<Lease>,
}

/// No address can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Every address is held.
    Exhausted,
    /// That address is not in the pool, or another machine's.
    NotYours,
}

/// All leases of one pool.
pub struct LeaseTable {
    first: u32,
    size: u32,
    lease: Duration,
    /// Addresses in the range that belong to somebody: server, router, network, broadcast.
    taken: BTreeSet<Ipv4Addr>,
    by_mac: BTreeMap<MacAddr, Entry>,
    by_address: BTreeMap<Ipv4Addr, MacAddr>,
    /// The first one is the first to go.
    by_age: BTreeSet<(Hold, Timestamp, MacAddr)>,
    declined: BTreeMap<Ipv4Addr, Timestamp>,
}

impl LeaseTable {
    /// A table with what was stored. Leases outside of the pool are left out; of two for one address the later one stays.
    pub fn new(pool: &Pool, server: Ipv4Addr, stored: impl IntoIterator<Item = Lease>) -> Self {
        let (first, last) = (u32::from(pool.first), u32::from(pool.last));
        let mask = netmask(pool.prefix_len);
        let network = first & mask;
        let infrastructure = pool.router.iter().chain(&pool.dns).chain(&pool.ntp).copied();
        let edges = [network, network | !mask].map(Ipv4Addr::from);
        let in_range = |address: &Ipv4Addr| (first..=last).contains(&u32::from(*address));
        let mut table = LeaseTable {
            first,
            size: last.saturating_sub(first).saturating_add(1),
            lease: pool.lease,
            taken: infrastructure.chain([server]).chain(edges).filter(in_range).collect(),
            by_mac: BTreeMap::new(),
            by_address: BTreeMap::new(),
            by_age: BTreeSet::new(),
            declined: BTreeMap::new(),
        };
        let mut stored: Vec<Lease> = stored.into_iter().filter(|lease| table.serves(lease.address)).collect();
        stored.sort_by_key(|lease| std::cmp::Reverse(lease.expires_at));
        for lease in stored {
            if !table.by_mac.contains_key(&lease.mac) && !table.by_address.contains_key(&lease.address) {
                table.hold(lease.mac, Entry { address: lease.address, hold: Hold::Leased, until: lease.expires_at });
            }
        }
        table
    }

    /// An address for this machine, held for [`OFFER_HOLD`]. The second value is a stored lease that had to go for it.
    pub fn offer(&mut self, now: Timestamp, mac: MacAddr) -> Result<(Ipv4Addr, Option<LeaseChange>), Refused> {
        if let Some(entry) = self.by_mac.get(&mac).copied() {
            if entry.hold == Hold::Offered {
                self.hold(mac, Entry { until: now.after(OFFER_HOLD), ..entry });
            }
            return Ok((entry.address, None));
        }
        self.declined.retain(|_, until| *until > now);
        let (address, change) = match self.free(mac) {
            Some(address) => (address, None),
            None => self.reclaim(now)?,
        };
        self.hold(mac, Entry { address, hold: Hold::Offered, until: now.after(OFFER_HOLD) });
        Ok((address, change))
    }

    /// Leases this very address to the machine: its own, or a free one, as after a restart between offer and request.
    pub fn lease(&mut self, now: Timestamp, mac: MacAddr, address: Ipv4Addr) -> Result<Lease, Refused> {
        self.declined.retain(|_, until| *until > now);
        let own = self.by_mac.get(&mac).map(|entry| entry.address);
        let free = !self.by_address.contains_key(&address) && !self.declined.contains_key(&address);
        let allowed = match own {
            Some(own) => own == address,
            None => free && self.serves(address),
        };
        if !allowed {
            return Err(Refused::NotYours);
        }
        let until = now.after(self.lease);
        self.hold(mac, Entry { address, hold: Hold::Leased, until });
        Ok(Lease { mac, address, expires_at: until })
    }

    /// The machine gives its address back. It will get the same one again, unless another machine needs it.
    pub fn release(&mut self, now: Timestamp, mac: MacAddr, address: Ipv4Addr) -> Option<LeaseChange> {
        let entry = self.by_mac.get(&mac).copied().filter(|entry| entry.address == address)?;
        if entry.hold == Hold::Offered {
            self.drop_hold(mac);
            return None;
        }
        let until = now.min(entry.until);
        self.hold(mac, Entry { until, ..entry });
        Some(LeaseChange { before: entry.lease(mac), after: Some(Lease { expires_at: until, ..entry.lease(mac) }) })
    }

    /// The machine takes another server's offer; a lease that it has stays.
    pub fn withdraw(&mut self, mac: MacAddr) {
        if self.by_mac.get(&mac).is_some_and(|entry| entry.hold == Hold::Offered) {
            self.drop_hold(mac);
        }
    }

    /// The machine found its address in use: nobody gets it for [`DECLINED_HOLD`]. Only its holder can say so.
    pub fn decline(&mut self, now: Timestamp, mac: MacAddr, address: Ipv4Addr) -> Option<LeaseChange> {
        let entry = self.by_mac.get(&mac).copied().filter(|entry| entry.address == address)?;
        self.drop_hold(mac);
        self.declined.insert(address, now.after(DECLINED_HOLD));
        (entry.hold == Hold::Leased).then(|| LeaseChange { before: entry.lease(mac), after: None })
    }

    fn serves(&self, address: Ipv4Addr) -> bool {
        u32::from(address).checked_sub(self.first).is_some_and(|offset| offset < self.size)
            && !self.taken.contains(&address)
    }

    /// The first free address, counted from the one that the MAC address hashes to.
    fn free(&self, mac: MacAddr) -> Option<Ipv4Addr> {
        let unavailable = self.by_address.len() + self.declined.len() + self.taken.len();
        if unavailable >= usize::try_from(self.size).unwrap_or(usize::MAX) {
            return None;
        }
        let [a, b, c, d, ..] = Digest::of(&mac.0).0;
        let start = u32::from_be_bytes([a, b, c, d]) % self.size;
        let after = (start..self.size).chain(0..start);
        after.map(|offset| Ipv4Addr::from(self.first + offset)).find(|address| {
            !self.by_address.contains_key(address)
                && !self.declined.contains_key(address)
                && !self.taken.contains(address)
        })
    }

    /// Takes the address that has been unused for longest; one that is still held by right is never taken.
    fn reclaim(&mut self, now: Timestamp) -> Result<(Ipv4Addr, Option<LeaseChange>), Refused> {
        let expired = |hold| {
            let oldest = self.by_age.range((hold, Timestamp::from_millis(0), MacAddr([0; 6]))..).next()?;
            (oldest.0 == hold && oldest.1 <= now).then_some(oldest.2)
        };
        let mac = expired(Hold::Offered).or_else(|| expired(Hold::Leased)).ok_or(Refused::Exhausted)?;
        let entry = self.drop_hold(mac).ok_or(Refused::Exhausted)?;
        let change = LeaseChange { before: entry.lease(mac), after: None };
        Ok((entry.address, (entry.hold == Hold::Leased).then_some(change)))
    }

    fn hold(&mut self, mac: MacAddr, entry: Entry) {
        self.drop_hold(mac);
        self.by_address.insert(entry.address, mac);
        self.by_age.insert((entry.hold, entry.until, mac));
        self.by_mac.insert(mac, entry);
    }

    fn drop_hold(&mut self, mac: MacAddr) -> Option<Entry> {
        let entry = self.by_mac.remove(&mac)?;
        self.by_address.remove(&entry.address);
        self.by_age.remove(&(entry.hold, entry.until, mac));
        Some(entry)
    }
}

impl Entry {
    fn lease(&self, mac: MacAddr) -> Lease {
        Lease { mac, address: self.address, expires_at: self.until }
    }
}
