//! The health of DHCP on each segment, and of each boot service, as last reported. In memory, for
//! operators and metrics.

use crate::boot::BootService;
use meshd_config::DhcpMode;
pub use meshd_dhcp::{OtherServer, PoolUse};
use std::time::Duration;

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

/// Age of a report after which the service counts as hung. Services are checked every ten seconds.
const REPORT_LIFE: Duration = Duration::from_secs(45);

/// Result of the last check of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceHealth {
    pub service: &'static str,
    pub interface: String,
    /// Why machines cannot use the service.
    pub fault: Option<String>,
}

/// Report of a service with its time on the monotonic clock.
pub(super) type ServiceReport = (Duration, ServiceHealth);

impl BootService {
    /// Replaces the reported health of a service on an interface.
    pub fn report_service(&self, service: &'static str, interface: &str, fault: Option<String>) {
        let report = (
            self.env.monotonic(),
            ServiceHealth { service, interface: interface.to_owned(), fault },
        );
        let mut services = self.services.lock();
        let is_same = |(_, known): &&mut ServiceReport| {
            known.service == service && known.interface == interface
        };
        match services.iter_mut().find(is_same) {
            Some(known) => *known = report,
            None => services.push(report),
        }
    }

    /// Returns the health of all services. A service that was not checked for a long time has a
    /// fault.
    pub fn services(&self) -> Vec<ServiceHealth> {
        let now = self.env.monotonic();
        let current = |(at, health): &ServiceReport| {
            let age = now.saturating_sub(*at);
            let hung =
                (age > REPORT_LIFE).then(|| format!("it was not checked for {} s", age.as_secs()));
            ServiceHealth { fault: hung.or_else(|| health.fault.clone()), ..health.clone() }
        };
        self.services.lock().iter().map(current).collect()
    }

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
