//! Rate limit of each sender: packets above it are dropped before the request is parsed. Of relayed
//! packets, the options are parsed to find the port of the client.

use crate::packet::{Options, Origin};
use dhcproto::v4::OptionCode;
use meshd_types::{Timestamp, failpoint};

/// Packets per second of one sender. Firmware sends at most four.
pub const MAX_PER_SECOND: u16 = 50;
/// Slots of the hash table, 24 bytes each. When two senders share a slot, the later one takes it: a
/// sender with many MAC addresses is limited by the pool, not here.
const SLOTS: usize = 16_384;

/// The sender: the Ethernet source address, or behind a relay the client with its relay and port.
/// So a forged packet does not use up the rate of the machine that it names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sender {
    mac: [u8; 6],
    relay: [u8; 4],
    port: u32,
}

impl Sender {
    /// Returns the sender of a packet, which may be malformed.
    pub(crate) fn of(packet: &[u8], origin: Origin) -> Self {
        let octets = |at: usize| packet.get(at..).unwrap_or_default();
        let claimed = octets(28).first_chunk::<6>().copied().unwrap_or_default();
        let relay = octets(24).first_chunk::<4>().copied().unwrap_or_default();
        match origin.ethernet_source {
            Some(hardware) if relay == [0; 4] && failpoint::defends("dhcp-sender-rate") => {
                Sender { mac: hardware.0, relay, port: 0 }
            }
            _ => {
                let port =
                    Options::read(packet).get(OptionCode::RelayAgentInformation).map_or(0, hash);
                Sender { mac: claimed, relay, port }
            }
        }
    }

    fn slot(self) -> usize {
        let mut key = [0; 14];
        key[..6].copy_from_slice(&self.mac);
        key[6..10].copy_from_slice(&self.relay);
        key[10..].copy_from_slice(&self.port.to_be_bytes());
        usize::try_from(hash(&key)).unwrap_or_default() % SLOTS
    }
}

/// The last sender of a hash value.
#[derive(Clone, Copy, Default)]
struct Slot {
    sender: Sender,
    count: u16,
    second: i64,
}

/// Packets of each sender in the current second.
pub(crate) struct RateLimiter(Vec<Slot>);

impl Default for RateLimiter {
    fn default() -> Self {
        RateLimiter(vec![Slot::default(); SLOTS])
    }
}

impl RateLimiter {
    /// Counts a packet. Returns true if it is within the rate.
    pub(crate) fn allow(&mut self, now: Timestamp, sender: Sender) -> bool {
        let second = now.seconds();
        let Some(slot) = self.0.get_mut(sender.slot()) else { return true };
        if slot.sender != sender || slot.second != second {
            *slot = Slot { sender, count: 0, second };
        }
        slot.count = slot.count.saturating_add(1);
        slot.count <= MAX_PER_SECOND
    }
}

/// Hashes with FNV-1a.
fn hash(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::MacAddr;
    use std::net::{Ipv4Addr, SocketAddrV4};

    fn sender(hardware: u8, claimed: u8, relay: u8) -> Sender {
        let mut packet = [0; 240];
        packet[24] = relay;
        packet[28..34].copy_from_slice(&[2, 0, 0, 0, 0, claimed]);
        let hardware = Some(MacAddr([2, 0, 0, 0, 0, hardware]));
        let source = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68);
        Sender::of(
            &packet,
            Origin { interface_index: 0, source, local_port: 67, ethernet_source: hardware },
        )
    }

    #[test]
    fn rate_limit_is_per_sender() {
        let mut flood = RateLimiter::default();
        let at = |millis| Timestamp::from_millis(millis);
        let loud = sender(1, 1, 0);
        let quiet = sender(2, 2, 0);
        let passed = (0..1000).filter(|n| flood.allow(at(5_000 + n % 999), loud)).count();
        assert_eq!(passed, usize::from(MAX_PER_SECOND));
        assert!(flood.allow(at(5_999), quiet), "another one is not held up");
        assert!(flood.allow(at(6_000), loud), "and the next second is a new one");
    }

    #[test]
    fn rate_limit_of_mac_is_not_spent_by_forged_sender() {
        let mut flood = RateLimiter::default();
        let now = Timestamp::from_millis(5_000);
        let junk = (0..1000).filter(|_| flood.allow(now, sender(66, 1, 0))).count();
        assert_eq!(junk, usize::from(MAX_PER_SECOND));
        assert!(flood.allow(now, sender(1, 1, 0)), "the machine itself is heard");
        let relayed = (0..1000).filter(|_| flood.allow(now, sender(9, 1, 10))).count();
        assert_eq!(relayed, usize::from(MAX_PER_SECOND));
        assert!(flood.allow(now, sender(9, 1, 20)), "behind another relay it is another one");
    }
}
