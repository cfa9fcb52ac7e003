//! Finds addresses that machines use without a lease, beside the packets: reads the kernel's
//! neighbour table, and asks the network (ARP) for each new offer.

use super::{driver::Driver, socket::BoundInterface};
use meshd_types::MacAddr;
use std::{
    io,
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Maximum number of ARP requests of one interface per tick.
const MAX_REQUESTS: usize = 16;
/// Maximum number of ARP replies that are read of one interface per tick.
const MAX_REPLIES: usize = 64;
/// The kernel's neighbour table (ARP) as text, one line for each address.
const NEIGHBOUR_TABLE: &str = "/proc/net/arp";
/// Flag of an entry with an Ethernet address (linux/if_arp.h, `ATF_COM`).
const COMPLETE: u32 = 0x2;

/// A machine that uses an address on an interface.
#[derive(Debug, PartialEq, Eq)]
struct Neighbour {
    interface: String,
    address: Ipv4Addr,
    mac: MacAddr,
}

/// The last reading of the neighbour table, until the driver takes it.
#[derive(Clone, Default)]
pub(super) struct NeighbourReading(Arc<Mutex<Option<Vec<Neighbour>>>>);

impl NeighbourReading {
    fn put(&self, neighbours: Vec<Neighbour>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(neighbours);
    }

    fn take(&self) -> Option<Vec<Neighbour>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Driver {
    /// Reports addresses in use to the engine, and begins the next look. Called once per tick; no
    /// packet waits for it.
    pub(super) fn look_for_used_addresses(&mut self) {
        if let Some(neighbours) = self.neighbours.take() {
            let mut warnings = Vec::new();
            for (index, bound) in self.interfaces.iter().enumerate() {
                let here = neighbours
                    .iter()
                    .filter(|neighbour| neighbour.interface == bound.interface.name);
                let here = here.map(|neighbour| (neighbour.address, neighbour.mac));
                warnings.extend(self.engine.set_neighbours(index, here));
            }
            self.perform(warnings, Instant::now());
        }
        for index in 0..self.interfaces.len() {
            self.receive_arp_replies(index);
            self.ask_for_new_offers(index);
        }
        let reading = self.neighbours.clone();
        self.tasks.spawn_blocking(move || match std::fs::read_to_string(NEIGHBOUR_TABLE) {
            Ok(table) => reading.put(table.lines().skip(1).filter_map(parse).collect()),
            Err(error) => tracing::debug!(%error, "cannot read the neighbour table"),
        });
    }

    fn ask_for_new_offers(&mut self, index: usize) {
        let offers = self.engine.take_unproven_offers(index, MAX_REQUESTS);
        let Some(BoundInterface { arp: Some(arp), interface, .. }) = self.interfaces.get(index)
        else {
            return;
        };
        for address in offers {
            if let Err(error) = arp.request_owner(address) {
                let name = &interface.name;
                self.log.warn("arp", || {
                    format!("cannot ask {name} whether {address} is in use: {error}")
                });
            }
        }
    }

    fn receive_arp_replies(&mut self, index: usize) {
        for _ in 0..MAX_REPLIES {
            let Some(BoundInterface { arp: Some(arp), .. }) = self.interfaces.get(index) else {
                return;
            };
            match arp.try_receive() {
                Ok(Some((address, mac))) => {
                    let warning =
                        self.engine.address_answered(self.shared.now(), index, address, mac);
                    self.perform(warning, Instant::now());
                }
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    return self.log.warn("arp", || format!("cannot receive ARP replies: {error}"));
                }
            }
        }
    }
}

/// Parses a line: address, hardware type, flags, Ethernet address, mask, interface.
fn parse(line: &str) -> Option<Neighbour> {
    let mut words = line.split_ascii_whitespace();
    let address = words.next()?.parse().ok()?;
    let flags = u32::from_str_radix(words.nth(1)?.strip_prefix("0x")?, 16).ok()?;
    let mac = words.next()?.parse().ok()?;
    let interface = words.nth(1)?.to_owned();
    (flags & COMPLETE != 0).then_some(Neighbour { interface, address, mac })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbour_line_is_parsed_if_it_has_an_ethernet_address() {
        let line = "10.77.0.100      0x1         0x2         52:54:00:00:00:09     *        br0";
        let mac = MacAddr([0x52, 0x54, 0, 0, 0, 9]);
        let neighbour =
            Neighbour { interface: "br0".to_owned(), address: Ipv4Addr::new(10, 77, 0, 100), mac };
        assert_eq!(parse(line), Some(neighbour));
        assert_eq!(
            parse("10.77.0.101      0x1         0x0         00:00:00:00:00:00     *        br0"),
            None
        );
        assert_eq!(
            parse("IP address       HW type     Flags       HW address            Mask     Device"),
            None
        );
    }

    proptest! {
        #[test]
        fn random_neighbour_line_never_panics(line in "\\PC{0,90}|([0-9]{1,3}\\.){3}[0-9] 0x1 0x[0-9] [0-9a-f:]{0,17} \\* [a-z]{0,5}") {
            let _ = parse(&line);
        }
    }
}
