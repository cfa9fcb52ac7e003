//! The boot of a machine, in the order of its steps.
//!
//! | module | content |
//! | --- | --- |
//! | `dhcp` | leases are stored, boot sessions opened and continued |
//! | `dhcp_records` | NICs, addresses in use and removed leases, as the DHCP engine learns them |
//! | `found_bmcs` | BMCs that lease addresses, and belong to no machine yet |
//! | `ipv6_boots` | machines whose firmware tried IPv6, until their DHCP exchange |
//! | `segment_health` | health of DHCP on each segment, and of each boot service |
//! | `claimed_address` | checks an address that a machine took by its own word |
//! | `fetched_stages` | loaders, kernel, initramfs, packages and modloop are fetched |
//! | `script` | the boot script: identity, admission, rendering, capability, plan |
//! | `queue_entry` | limits how many machines load at once |
//! | `boot_log` | logs of boots: pieces from agents, consoles, and reports of failed boots |
//! | `overlay_delivery` | the overlay: token, per-boot part, single use |
//! | `stalls` | boots that stall, repeat, or have no overlay |
//! | `warm_boot` | a boot that the running node fetches over its link, and starts by kexec |
//! | `wire_identity` | binds addresses to their machines, and judges segments of other machines |

mod boot_log;
mod claimed_address;
mod dhcp;
mod dhcp_records;
mod fetched_stages;
mod found_bmcs;
mod ipv6_boots;
mod overlay_delivery;
mod queue_entry;
mod script;
mod segment_health;
mod stalls;
mod warm_boot;
mod wire_identity;

pub use dhcp::{DhcpChange, DhcpExchange, LeaseChange};
pub use dhcp_records::{DhcpRecordUpdate, MachineNic, NicRecord};
pub use fetched_stages::Fetched;
pub use found_bmcs::{BmcClaim, FoundBmc};
pub use overlay_delivery::{OverlayDenied, OverlayTransfer};
pub use segment_health::{OtherServer, PoolUse, SegmentHealth, ServiceHealth};
pub(super) use stalls::SCAN_INTERVAL;

use super::{
    enrolment::Enrolment,
    environment::{Environment, interval::Interval},
    generations::Generations,
    links::Links,
    locks::Leaf,
};
use boot_log::{LOG_LIMITS, LogBudget, LogWriter};
use bytes::Bytes;
use found_bmcs::FoundBmcs;
use ipv6_boots::Ipv6Boots;
use meshd_model::boot::BootQueue;
use meshd_proto::log::LogSource;
use meshd_store::ChunkLogs;
use meshd_trust::CapabilityRedactor;
use meshd_types::BootSessionId;
use overlay_delivery::PendingOverlay;
use queue_entry::Repeats;
use segment_health::ServiceReport;
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::Semaphore;

/// Boots machines.
pub struct BootService {
    env: Arc<Environment>,
    links: Arc<Links>,
    enrolment: Arc<Enrolment>,
    generations: Arc<Generations>,
    /// Loaders by file name.
    loaders: BTreeMap<String, Bytes>,
    /// The overlay that the script of each session names: the delivered overlay has the same
    /// generation.
    pending_overlays: Leaf<BTreeMap<BootSessionId, PendingOverlay>>,
    queue: Leaf<BootQueue>,
    repeats: Leaf<Repeats>,
    ipv6_boots: Leaf<Ipv6Boots>,
    found_bmcs: Leaf<FoundBmcs>,
    segments: Leaf<Vec<SegmentHealth>>,
    services: Leaf<Vec<ServiceReport>>,
    logs: Arc<ChunkLogs<BootSessionId, LogSource>>,
    log_budgets: Leaf<BTreeMap<(BootSessionId, LogWriter), LogBudget>>,
    /// State of the match between two netconsole packets of a boot.
    netconsole_redactors: Leaf<BTreeMap<BootSessionId, CapabilityRedactor>>,
    log_sweeps: Interval,
    /// Limits the addresses that are probed at the same time.
    address_probes: Semaphore,
}

impl BootService {
    pub(super) fn new(
        env: Arc<Environment>,
        links: Arc<Links>,
        enrolment: Arc<Enrolment>,
        generations: Arc<Generations>,
        loaders: BTreeMap<String, Bytes>,
    ) -> Self {
        let queue = Leaf::new(BootQueue::new(env.site().boot.max_loading));
        let logs = Arc::new(ChunkLogs::new(env.site().state_dir.join("boot-logs"), LOG_LIMITS));
        BootService {
            env,
            links,
            enrolment,
            generations,
            loaders,
            pending_overlays: Leaf::default(),
            queue,
            repeats: Leaf::default(),
            ipv6_boots: Leaf::default(),
            found_bmcs: Leaf::default(),
            segments: Leaf::default(),
            services: Leaf::default(),
            logs,
            log_budgets: Leaf::default(),
            netconsole_redactors: Leaf::default(),
            log_sweeps: Interval::default(),
            address_probes: Semaphore::new(claimed_address::MAX_PROBES),
        }
    }
}
