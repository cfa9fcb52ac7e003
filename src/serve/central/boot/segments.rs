//! The health of DHCP on each segment, as last reported. In memory, for operators and metrics.

use crate::serve::central::boot::BootService;
use meshd_config::DhcpMode;
use meshd_types::Timestamp;
use std::net::Ipv4Addr;

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

/// Addresses of a pool, by what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    /// All of them.
    pub size: u32,
    /// With a lease that has not run out.
    pub leased: u32,
    /// Offered within the last minute.
    pub offered: u32,
    /// Left alone, because a client found them in use.
    pub declined: u32,
}

/// A server that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherServer {
    /// Its server identifier (option 54).
    pub address: Ipv4Addr,
    /// True if it answers as a proxy for PXE clients only.
    pub proxy: bool,
    /// Last heard.
    pub last: Timestamp,
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
