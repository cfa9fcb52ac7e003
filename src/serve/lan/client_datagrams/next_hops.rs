//! The next hops to clients, as the kernel knows them.

use crate::serve::lan::kernel_tables::KernelTables;
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
pub(super) struct NextHop {
    pub(super) is_router: bool,
    /// The kernel knows its Ethernet address.
    pub(super) is_resolved: bool,
}

/// Looks up next hops, each at most once in [`LIFETIME`].
#[derive(Default)]
pub(super) struct NextHops {
    kernel: KernelTables,
    known: HashMap<Ipv4Addr, (Instant, NextHop)>,
}

impl NextHops {
    pub(super) fn get(&mut self, now: Instant, address: Ipv4Addr) -> NextHop {
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
        let neighbour = self.kernel.neighbour(index, hop);
        NextHop { is_router: hop != address, is_resolved: matches!(neighbour, Ok(Some(_))) }
    }
}
