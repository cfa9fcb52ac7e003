//! IPv4 subnets. A node chooses that of a network: the first of the pool that no route of the node
//! overlaps (NW-7).

use meshd_types::ParseError;
use std::{fmt, net::Ipv4Addr, str::FromStr};

/// An IPv4 subnet. As text: `172.30.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    network: u32,
    /// Prefix length.
    bits: u8,
}

impl Subnet {
    /// Returns the subnet that contains an address.
    pub fn containing(address: Ipv4Addr, bits: u8) -> Self {
        let bits = bits.min(32);
        Subnet { network: address.to_bits() & mask(bits), bits }
    }

    pub fn mask(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(mask(self.bits))
    }

    pub fn network(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network)
    }

    /// Returns the prefix length.
    pub fn bits(self) -> u8 {
        self.bits
    }

    /// Returns the address of the node: the first host.
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network | 1)
    }

    /// Returns the first and last address for VMs.
    pub fn vm_range(self) -> (Ipv4Addr, Ipv4Addr) {
        (
            Ipv4Addr::from_bits(self.network | 2),
            Ipv4Addr::from_bits((self.network | !mask(self.bits)).saturating_sub(1)),
        )
    }

    /// Returns true for an address that a VM may have: not the network, node or broadcast address.
    pub fn is_assignable(self, address: Ipv4Addr) -> bool {
        let bits = address.to_bits();
        self.contains(address)
            && bits != self.network
            && bits != self.network | 1
            && bits != self.network | !mask(self.bits)
    }

    pub fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & mask(self.bits) == self.network
    }

    pub fn overlaps(self, other: Subnet) -> bool {
        let bits = mask(self.bits.min(other.bits));
        self.network & bits == other.network & bits
    }

    /// Returns the first subnet of this pool that no route overlaps.
    pub fn first_free(self, bits: u8, routes: &[Subnet]) -> Option<Subnet> {
        if bits < self.bits || bits > 30 {
            return None;
        }
        let count = 1_u64 << (bits - self.bits);
        let mut subnets = (0..count).map(|n| Subnet {
            network: self.network | u32::try_from(n << (32 - bits)).unwrap_or(0),
            bits,
        });
        // The default route does not count.
        let taken =
            |subnet: Subnet| routes.iter().any(|route| route.bits > 0 && route.overlaps(subnet));
        subnets.find(|subnet| !taken(*subnet))
    }
}

fn mask(bits: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0)
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network(), self.bits)
    }
}

impl FromStr for Subnet {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse(text).ok_or_else(|| {
            let hint = "write it as 172.30.0.0/16, without host bits";
            ParseError::of_text(text, "is no IPv4 subnet", hint)
        })
    }
}

fn parse(text: &str) -> Option<Subnet> {
    let (address, bits) = text.split_once('/')?;
    let address = address.parse().ok()?;
    let bits = bits.parse().ok()?;
    let subnet = Subnet::containing(address, bits);
    (bits <= 32 && subnet.network() == address).then_some(subnet)
}

meshd_types::serde_as_text!(Subnet);

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Subnet {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn first_free_subnet_overlaps_no_route() {
        let pool = net("172.30.0.0/16");
        assert_eq!(pool.first_free(24, &[net("0.0.0.0/0")]), Some(net("172.30.0.0/24")));
        assert_eq!(
            pool.first_free(24, &[net("172.30.0.128/25"), net("172.30.1.7/32")]),
            Some(net("172.30.2.0/24"))
        );
        assert_eq!(pool.first_free(24, &[net("172.16.0.0/12")]), None);
        assert_eq!(pool.first_free(8, &[]), None);
        assert_eq!(net("10.0.0.0/24").first_free(24, &[]), Some(net("10.0.0.0/24")));
    }

    #[test]
    fn network_node_and_broadcast_addresses_are_not_assignable() {
        let subnet = net("172.30.2.0/24");
        let free = |last: u8| subnet.is_assignable(Ipv4Addr::new(172, 30, 2, last));
        assert_eq!(
            [free(0), free(1), free(2), free(254), free(255)],
            [false, false, true, true, false]
        );
        assert!(!subnet.is_assignable(Ipv4Addr::new(172, 30, 3, 2)));
        assert_eq!(
            (subnet.gateway(), subnet.mask()),
            (Ipv4Addr::new(172, 30, 2, 1), Ipv4Addr::new(255, 255, 255, 0))
        );
    }

    #[test]
    fn invalid_subnet_is_refused() {
        for text in ["10.0.0.1/24", "10.0.0.0", "10.0.0.0/33", "x/8"] {
            assert!(text.parse::<Subnet>().is_err(), "{text}");
        }
    }
}
