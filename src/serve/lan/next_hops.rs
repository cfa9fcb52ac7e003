//! The next hops to clients, as the kernel knows them.

use super::kernel_tables::KernelTables;
use std::{
    collections::HashMap,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

/// Time for which an answer of the kernel is used. A next hop may stop answering ARP meanwhile; the
/// kernel bounds the bytes that it then keeps.
const LIFETIME: Duration = Duration::from_secs(1);
/// Maximum number of remembered addresses. Above it, all are forgotten.
const MAX_ADDRESSES: usize = 16_384;

/// The next hop to a client: the client itself, or a router.
#[derive(Clone, Copy)]
pub struct NextHop {
    pub is_router: bool,
    /// The kernel knows its Ethernet address on the interface.
    pub is_resolved: bool,
}

/// Looks up the next hops of one interface, each at most once in [`LIFETIME`].
pub struct NextHops {
    /// Index of the interface.
    interface: u32,
    kernel: KernelTables,
    known: HashMap<Ipv4Addr, (Instant, NextHop)>,
}

impl NextHops {
    pub fn new(interface: u32) -> Self {
        NextHops { interface, kernel: KernelTables::default(), known: HashMap::new() }
    }

    pub fn get(&mut self, now: Instant, address: Ipv4Addr) -> NextHop {
        if let Some((at, hop)) = self.known.get(&address)
            && now.saturating_duration_since(*at) < LIFETIME
        {
            return *hop;
        }
        if self.known.len() >= MAX_ADDRESSES {
            self.known.clear();
        }
        let hop = self.look_up(address);
        self.known.insert(address, (now, hop));
        hop
    }

    /// Asks the kernel. Without a route or an answer, clients get frames.
    fn look_up(&self, address: Ipv4Addr) -> NextHop {
        let Ok(Some((index, hop))) = self.kernel.next_hop(address) else {
            return NextHop { is_router: true, is_resolved: false };
        };
        let neighbour = || self.kernel.neighbour(index, hop);
        let is_resolved = index == self.interface && matches!(neighbour(), Ok(Some(_)));
        NextHop { is_router: hop != address, is_resolved }
    }
}
