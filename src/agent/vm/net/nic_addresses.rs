//! Addresses that the private network assigned to NICs, and conflicts with them. Pure.

use crate::vm::failure::refusal;
use meshd_proto::vm::{Nic, VmRefusal, VmRefusalReason, VmSpec};
use meshd_types::MacAddr;
use std::{collections::BTreeMap, net::Ipv4Addr};

/// Addresses by MAC address.
pub type NicAddresses = BTreeMap<MacAddr, Ipv4Addr>;

/// Returns the addresses of a VM.
pub fn known_addresses(spec: &VmSpec, assigned: &NicAddresses) -> NicAddresses {
    spec.nics.iter().filter_map(|nic| Some((nic.mac, *assigned.get(&nic.mac)?))).collect()
}

/// Returns refusals for fixed addresses that other NICs have.
pub fn conflicts(spec: &VmSpec, assigned: &NicAddresses) -> Vec<VmRefusal> {
    let mut refusals = Vec::new();
    for (index, address) in fixed(&spec.nics) {
        let own = |mac: &MacAddr| spec.nics.iter().any(|nic| nic.mac == *mac);
        if let Some((mac, _)) =
            assigned.iter().find(|(mac, assigned)| **assigned == address && !own(mac))
        {
            let detail = format!(
                "nic[{index}].address: {address} is the address of the NIC {mac} on this node"
            );
            refusals.push(refusal(VmRefusalReason::AddressTaken, detail));
        }
    }
    refusals
}

/// Returns the indexes and addresses of the NICs in the private network that have a fixed address.
pub fn fixed(nics: &[Nic]) -> impl Iterator<Item = (usize, Ipv4Addr)> {
    let private = |nic: &Nic| nic.network().is_some_and(|network| network.is_private());
    nics.iter()
        .enumerate()
        .filter(move |(_, nic)| private(nic))
        .filter_map(|(index, nic)| Some((index, nic.address?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::fixtures;

    #[test]
    fn address_of_another_nic_is_refused() {
        let nics = [
            (1, "mesh-nat0", "172.30.0.9"),
            (2, "mesh-nat0", "172.30.0.10"),
            (3, "br0", "172.30.0.11"),
        ];
        let nics = nics.map(|(last, bridge, address)| fixtures::nic(last, bridge, address));
        let spec = fixtures::spec(serde_json::json!({ "nics": nics }));
        let assigned = |pairs: &[(u8, u8)]| -> NicAddresses {
            let pair = |(mac, last): &(u8, u8)| {
                (MacAddr([0x52, 0x54, 0, 0, 0, *mac]), Ipv4Addr::new(172, 30, 0, *last))
            };
            pairs.iter().map(pair).collect()
        };
        assert!(conflicts(&spec, &assigned(&[(1, 9), (2, 10), (7, 11), (8, 12)])).is_empty());
        let refused = conflicts(&spec, &assigned(&[(7, 9), (8, 10)]));
        assert_eq!(
            refused.iter().map(|refusal| refusal.reason).collect::<Vec<_>>(),
            [VmRefusalReason::AddressTaken; 2]
        );
        assert!(refused[1].detail.starts_with("nic[1].address: 172.30.0.10 "), "{refused:?}");
        assert_eq!(known_addresses(&spec, &assigned(&[(2, 10), (7, 9)])), assigned(&[(2, 10)]));
    }
}
