//! Addresses that are bound to the NIC of the machine that boots or has its link from there, in the
//! kernel's neighbour table.
//!
//! A permanent entry of the neighbour table is not changed by ARP: answers reach the machine that
//! asked. Segments from another NIC are foreign, also where the kernel refuses the entry.

use super::kernel_tables::KernelTables;
use meshd_types::MacAddr;
use std::{
    collections::BTreeMap,
    io,
    net::Ipv4Addr,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Maximum number of bound addresses. Further ones are not bound.
const MAX_PINS: usize = 16_384;

#[derive(Default)]
pub(super) struct NeighbourPins {
    inner: Mutex<PinTable>,
}

#[derive(Default)]
struct PinTable {
    pins: BTreeMap<Ipv4Addr, Pin>,
    /// The last refusal of the kernel.
    fault: Option<String>,
}

struct Pin {
    mac: MacAddr,
    /// Index of the interface.
    index: u32,
    is_enforced: bool,
}

impl NeighbourPins {
    /// Returns the NIC to which an address is bound.
    pub(super) fn mac(&self, address: Ipv4Addr) -> Option<MacAddr> {
        self.lock().pins.get(&address).map(|pin| pin.mac)
    }

    /// Returns the NIC to which an address is bound, and whether the kernel enforces it on the
    /// interface that has this index now.
    pub(super) fn get(&self, address: Ipv4Addr, index: Option<u32>) -> Option<(MacAddr, bool)> {
        let is_enforced = |pin: &Pin| pin.is_enforced && Some(pin.index) == index;
        self.lock().pins.get(&address).map(|pin| (pin.mac, is_enforced(pin)))
    }

    pub(super) fn set(&self, kernel: &KernelTables, index: u32, address: Ipv4Addr, mac: MacAddr) {
        let mut inner = self.lock();
        if inner.pins.len() < MAX_PINS || inner.pins.contains_key(&address) {
            let is_enforced = inner.enforce(kernel.pin(index, address, mac));
            inner.pins.insert(address, Pin { mac, index, is_enforced });
        }
    }

    /// Removes the bindings that are not in use any more. The others are written again, for the
    /// interface that has the address now: the kernel removes them when an interface goes down or
    /// away.
    pub(super) fn retain(
        &self,
        kernel: &KernelTables,
        is_used: &dyn Fn(Ipv4Addr, MacAddr) -> bool,
        index_of: impl Fn(Ipv4Addr) -> Option<u32>,
    ) {
        // `is_used` reads the store, so no lock is held.
        let pins: Vec<_> =
            self.lock().pins.iter().map(|(address, pin)| (*address, pin.mac)).collect();
        for (address, mac) in pins {
            let is_used = is_used(address, mac);
            let current = index_of(address);
            let mut inner = self.lock();
            let Some(index) =
                inner.pins.get(&address).filter(|pin| pin.mac == mac).map(|pin| pin.index)
            else {
                continue;
            };
            if is_used {
                let index = current.unwrap_or(index);
                let is_enforced = inner.enforce(kernel.pin(index, address, mac));
                inner.pins.insert(address, Pin { mac, index, is_enforced });
            } else if inner
                .pins
                .remove(&address)
                .is_some_and(|pin| pin.is_enforced && Some(index) == current)
                && let Err(error) = kernel.unpin(index, address)
            {
                tracing::warn!(%address, %error, "cannot remove an entry of the neighbour table");
            }
        }
    }

    /// Returns why the kernel does not enforce the bindings.
    pub(super) fn fault(&self) -> Option<String> {
        self.lock().fault.clone()
    }

    fn lock(&self) -> MutexGuard<'_, PinTable> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PinTable {
    /// Records the result of a change. Returns true if the kernel made it.
    fn enforce(&mut self, done: io::Result<()>) -> bool {
        match done {
            Ok(()) => self.fault = None,
            Err(error) if self.fault.is_some() => tracing::debug!(%error, "cannot bind an address"),
            Err(error) => {
                tracing::warn!(%error, "cannot bind addresses to their machines in the neighbour table; CAP_NET_ADMIN is needed");
                self.fault = Some(error.to_string());
            }
        }
        self.fault.is_none()
    }
}
