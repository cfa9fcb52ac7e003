//! BMCs that lease addresses and name themselves in DHCP. An operator gives each its machine: the
//! name proves nothing, so no password goes to a BMC that is only found.

use super::BootService;
use crate::environment::bmcs::{BmcOwner, host_of, resolve};
use meshd_types::{MacAddr, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::Ipv4Addr,
};

/// Maximum number of found BMCs. Beyond it, the one that was not seen for longest goes: a flood of
/// invented ones displaces real ones until they renew their leases.
const MAX_FOUND: usize = 1024;

/// What a client says of itself in DHCP: that it is a BMC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BmcClaim {
    /// Name of the product.
    pub product: &'static str,
    pub host_name: Option<String>,
}

impl fmt::Display for BmcClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.product)?;
        self.host_name.iter().try_for_each(|name| write!(f, " {name}"))
    }
}

/// A BMC that leases an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundBmc {
    pub mac: MacAddr,
    pub address: Ipv4Addr,
    pub claim: BmcClaim,
    /// Time of its last exchange.
    pub seen_at: Timestamp,
}

/// Found BMCs by MAC address.
pub(super) type FoundBmcs = BTreeMap<MacAddr, FoundBmc>;

impl BootService {
    /// Remembers a BMC that has a lease.
    pub(super) fn find_bmc(&self, found: FoundBmc) {
        insert(&mut self.found_bmcs.lock(), found);
    }

    /// Returns what is known of BMCs by MAC address: the machine of each, or its claim.
    pub fn bmc_words(&self) -> BTreeMap<MacAddr, String> {
        let found: BTreeMap<_, _> =
            self.found_bmcs.lock().values().map(|bmc| (bmc.mac, bmc.claim.to_string())).collect();
        self.env.store.read(|model| {
            let machines = model.expected_machines();
            let paired = machines.filter_map(|machine| {
                Some((machine.bmc_mac?, format!("BMC of {}", machine.title())))
            });
            found.into_iter().chain(paired).collect()
        })
    }

    /// Returns the found BMCs that have a lease and no machine, by MAC address. A machine has one by
    /// its record, or by a rule of the site with the address.
    pub fn unpaired_bmcs(&self) -> Vec<FoundBmc> {
        let mut found: Vec<FoundBmc> = self.found_bmcs.lock().values().cloned().collect();
        let now = self.env.now();
        let site = self.env.site();
        self.env.store.read(|model| {
            found.retain(|bmc| {
                let lease = model.lease(bmc.address);
                lease.is_some_and(|lease| lease.mac == bmc.mac && lease.expires_at > now)
            });
            if found.is_empty() {
                return;
            }
            let paired: BTreeSet<MacAddr> =
                model.expected_machines().filter_map(|machine| machine.bmc_mac).collect();
            let machines = model.expected_machines();
            let machines = machines.map(|machine| BmcOwner::of_machine(model, machine));
            let nodes = model.nodes().map(|node| BmcOwner::of_node(model, node));
            let resolved = machines.chain(nodes).filter_map(|it| resolve(&site, &it, now).ok());
            // A record may be without a rule as yet.
            let recorded = model.expected_machines().filter_map(|it| it.bmc_address.clone());
            let used = recorded.chain(resolved.map(|bmc| bmc.address));
            let used: BTreeSet<String> = used.filter_map(|address| host_of(&address)).collect();
            found.retain(|bmc| {
                !paired.contains(&bmc.mac) && !used.contains(&bmc.address.to_string())
            });
        });
        found
    }
}

fn insert(bmcs: &mut FoundBmcs, found: FoundBmc) {
    if bmcs.len() >= MAX_FOUND && !bmcs.contains_key(&found.mac) {
        let oldest = bmcs.values().min_by_key(|bmc| bmc.seen_at).map(|bmc| bmc.mac);
        oldest.map(|mac| bmcs.remove(&mac));
    }
    bmcs.insert(found.mac, found);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_bmcs_are_bounded_and_the_oldest_one_goes() {
        let bmc = |number: u16, millis| {
            let [high, low] = number.to_be_bytes();
            let claim = BmcClaim { product: "HPE iLO", host_name: None };
            let mac = MacAddr([2, 0, 0, 0, high, low]);
            let seen_at = Timestamp::from_millis(millis);
            FoundBmc { mac, address: Ipv4Addr::LOCALHOST, claim, seen_at }
        };
        let mut bmcs = FoundBmcs::new();
        for number in 0..1024 {
            insert(&mut bmcs, bmc(number, i64::from(number)));
        }
        insert(&mut bmcs, bmc(0, 5000));
        insert(&mut bmcs, bmc(2000, 5001));
        assert_eq!(bmcs.len(), MAX_FOUND);
        assert!(bmcs.contains_key(&bmc(0, 0).mac), "it was seen again");
        assert!(!bmcs.contains_key(&bmc(1, 0).mac), "it was not seen for longest");
    }
}
