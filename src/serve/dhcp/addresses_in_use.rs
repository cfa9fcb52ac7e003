//! Finds addresses that machines use without a lease, beside the packets: reads the kernel's
//! neighbour table, and asks the network (ARP) for each new offer.

use super::{driver::Driver, socket::BoundInterface};
use std::{io, time::Instant};

/// Maximum number of ARP requests of one interface per tick.
const MAX_REQUESTS: usize = 16;
/// Maximum number of ARP replies that are read of one interface per tick.
const MAX_REPLIES: usize = 64;
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
        self.neighbours.start(&self.tasks);
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
                        self.engine.handle_arp_reply(self.shared.now(), index, address, mac);
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
