//! Machines that are seen on the network with addresses of the range. What they claim is not
//! proven: ARP has no authentication.

use meshd_types::{MacAddr, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

/// Most addresses that a machine may use without a lease. One that claims more is no machine with
/// addresses of its own, but an attacker, or a router that answers for others.
const MAX_CLAIMS: usize = 4;

/// Users of addresses.
pub(crate) struct Neighbours {
    users: BTreeMap<Ipv4Addr, MacAddr>,
    /// Machines that claim too many addresses.
    ignored: BTreeSet<MacAddr>,
    /// Most addresses that are kept for machines without a lease.
    most: usize,
}

impl Neighbours {
    pub(crate) fn new(most: usize) -> Self {
        Neighbours { users: BTreeMap::new(), ignored: BTreeSet::new(), most }
    }

    /// Replaces all users. `holds`: the machine has this address from this server. Returns the
    /// machines that are ignored from now on.
    pub(crate) fn replace(
        &mut self,
        seen: impl Iterator<Item = (Ipv4Addr, MacAddr)>,
        holds: impl Fn(Ipv4Addr, MacAddr) -> bool,
    ) -> Vec<MacAddr> {
        let (held, mut claimed): (Vec<_>, Vec<_>) =
            seen.partition(|(address, mac)| holds(*address, *mac));
        let mut ignored = BTreeSet::new();
        if failpoint::defends("dhcp-claimed-addresses") {
            let mut claims: BTreeMap<MacAddr, usize> = BTreeMap::new();
            claimed.iter().for_each(|(_, mac)| *claims.entry(*mac).or_default() += 1);
            ignored.extend(
                claims.into_iter().filter(|(_, count)| *count > MAX_CLAIMS).map(|(mac, _)| mac),
            );
            claimed.retain(|(_, mac)| !ignored.contains(mac));
            // Later claims do not displace earlier ones.
            claimed.sort_by_key(|(address, mac)| self.users.get(address) != Some(mac));
            claimed.truncate(self.most);
        }
        self.users = held.into_iter().chain(claimed).collect();
        let new = ignored.difference(&self.ignored).copied().collect();
        self.ignored = ignored;
        new
    }

    /// Returns true if another machine uses the address.
    pub(crate) fn is_used_by_other(&self, address: Ipv4Addr, mac: MacAddr) -> bool {
        self.users.get(&address).is_some_and(|user| *user != mac)
    }

    /// Returns true for a machine that claims too many addresses.
    pub(crate) fn is_ignored(&self, mac: MacAddr) -> bool {
        self.ignored.contains(&mac)
    }

    pub(crate) fn len(&self) -> usize {
        self.users.len()
    }
}
