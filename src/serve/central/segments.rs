//! How each segment's DHCP is doing, as its service last said: kept in memory, for operators and metrics.

use super::{Central, lock};
use meshd_config::DhcpMode;
pub use meshd_dhcp::{OtherServer, PoolUse};

/// One segment, now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHealth {
    /// Its name: the interface, or `relay-<address>`.
    pub name: String,
    /// Who owns DHCP there.
    pub mode: DhcpMode,
    /// Addresses of the pool, by what they are; all zero without a pool.
    pub pool: PoolUse,
    /// Other DHCP and PXE servers that were heard there, newest last.
    pub other_servers: Vec<OtherServer>,
}

impl Central {
    /// The DHCP service says how a segment is; it replaces what it said before.
    pub fn report_segment(&self, health: SegmentHealth) {
        let mut segments = lock(&self.segments);
        match segments.iter_mut().find(|known| known.name == health.name) {
            Some(known) => *known = health,
            None => segments.push(health),
        }
    }

    /// All segments, in the order in which their services started.
    pub fn segments(&self) -> Vec<SegmentHealth> {
        lock(&self.segments).clone()
    }
}
