//! The health of DHCP on each segment, as last reported. In memory, for operators and metrics.

use crate::serve::central::boot::BootService;
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

impl BootService {
    /// Replaces the reported health of a segment.
    pub fn report_segment(&self, health: SegmentHealth) {
        let mut segments = self.segments.lock();
        match segments.iter_mut().find(|known| known.name == health.name) {
            Some(known) => *known = health,
            None => segments.push(health),
        }
    }

    /// All segments, in the order in which their services started.
    pub fn segments(&self) -> Vec<SegmentHealth> {
        self.segments.lock().clone()
    }
}
