//! The health of DHCP on each segment, as last reported. In memory, for operators and metrics.

use crate::boot::BootService;
use meshd_config::DhcpMode;
pub use meshd_dhcp::{OtherServer, PoolUse};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHealth {
    /// The interface, or `relay-<address>`.
    pub name: String,
    /// The role of meshd's DHCP service.
    pub mode: DhcpMode,
    /// Addresses of the pool by state; all zero without a pool.
    pub pool: PoolUse,
    /// Other DHCP and PXE servers on the segment, newest last.
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
