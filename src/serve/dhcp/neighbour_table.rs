//! The kernel's neighbour table (ARP): the machines that use addresses on an interface.

use meshd_types::MacAddr;
use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
};
use tokio_util::task::TaskTracker;

/// The kernel's neighbour table (ARP) as text, one line for each address.
const NEIGHBOUR_TABLE: &str = "/proc/net/arp";
/// Flag of an entry with an Ethernet address (linux/if_arp.h, `ATF_COM`).
const COMPLETE: u32 = 0x2;

/// A machine that uses an address on an interface.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Neighbour {
    pub(super) interface: String,
    pub(super) address: Ipv4Addr,
    pub(super) mac: MacAddr,
}

/// The last reading of the neighbour table, until the driver takes it.
#[derive(Clone, Default)]
pub(super) struct NeighbourReading(Arc<Mutex<Option<Vec<Neighbour>>>>);

impl NeighbourReading {
    /// Starts to read the table; no packet waits for it.
    pub(super) fn start(&self, tasks: &TaskTracker) {
        let reading = self.clone();
        tasks.spawn_blocking(move || match std::fs::read_to_string(NEIGHBOUR_TABLE) {
            Ok(table) => reading.put(table.lines().skip(1).filter_map(parse).collect()),
            Err(error) => tracing::debug!(%error, "cannot read the neighbour table"),
        });
    }

    fn put(&self, neighbours: Vec<Neighbour>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(neighbours);
    }

    /// Returns a finished reading, once.
    pub(super) fn take(&self) -> Option<Vec<Neighbour>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
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
