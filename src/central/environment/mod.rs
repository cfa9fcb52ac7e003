//! What every service uses: store, clock, randomness, the boot LAN, the snapshot of the site, and
//! the event log.
//!
//! | module | content |
//! | --- | --- |
//! | `alarms` | events and conditions for attacks, with a rate limit per cause |
//! | `bmcs` | BMCs of machines, and bounded requests to them |
//! | `interval` | limits periodic work to one run in each interval |
//! | `address_owner_check` | checks a client against the Ethernet address on the wire |
//! | `lan_client` | the client of a request, with the observed connection that carried the request |
//! | `locks` | mutexes with a fixed order |
//! | `logs` | the event log and the audit log, for readers outside the central node |
//! | `records` | boot stages, phase changes and cleared conditions, inside a transaction |
//! | `site_snapshot` | site, overlays, images and rolled back profiles as of one reload |
//! | `sources` | traits for time, randomness and layer 2 |

pub(crate) mod alarms;
pub(crate) mod bmcs;
pub(crate) mod interval;
mod address_owner_check;
pub(crate) mod lan_client;
pub(crate) mod locks;
mod logs;
pub(crate) mod records;
pub(crate) mod site_snapshot;
pub(crate) mod sources;

use crate::locks::Leaf;
use alarms::Limiter;
use meshd_builder::ListOwner;
use meshd_config::Site;
use meshd_image::catalog::Catalog;
use meshd_model::{
    boot::Endpoint,
    fleet::{AuditContext, Principal, Verb},
};
use meshd_store::Store;
use meshd_types::{CorrelationId, Timestamp};
use site_snapshot::SiteSnapshot;
use sources::{Clock, Entropy, Lan};
use std::{
    io,
    net::Ipv4Addr,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

/// Shared by all services. Only the snapshot changes while meshd runs.
pub struct Environment {
    pub(crate) store: Store,
    clock: Box<dyn Clock>,
    entropy: Box<dyn Entropy>,
    pub(crate) lan: Box<dyn Lan>,
    snapshot: RwLock<Arc<SiteSnapshot>>,
    alarms: Limiter,
    /// Locked while the file of the site's ID is read or made.
    site_id_file: Leaf<()>,
    /// Monotonic time at which meshd started.
    pub(crate) started: Duration,
}

impl Environment {
    pub(crate) fn new(
        store: Store,
        clock: Box<dyn Clock>,
        entropy: Box<dyn Entropy>,
        lan: Box<dyn Lan>,
        snapshot: SiteSnapshot,
    ) -> Self {
        let started = clock.monotonic();
        let snapshot = RwLock::new(Arc::new(snapshot));
        let alarms = Limiter::default();
        Environment {
            store,
            clock,
            entropy,
            lan,
            snapshot,
            alarms,
            site_id_file: Leaf::default(),
            started,
        }
    }

    /// The present snapshot. Keep it for one request only.
    pub fn snapshot(&self) -> Arc<SiteSnapshot> {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn replace_snapshot(&self, snapshot: SiteSnapshot) {
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }

    pub fn site(&self) -> Arc<Site> {
        self.snapshot().site.clone()
    }

    /// Returns the owner of this site's lists in the folder of blobs. Blocks.
    ///
    /// # Errors
    /// The state folder cannot be read or written.
    pub(crate) fn list_owner(&self) -> io::Result<ListOwner> {
        let site = self.site();
        let _alone = self.site_id_file.lock();
        ListOwner::read_or_create(&site.state_dir, &site.name, self.random())
    }

    /// Images and overlays. Keep them for one request only.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.snapshot().catalog.clone()
    }

    /// Returns the HTTP endpoint of the central node at one of its addresses.
    pub fn endpoint(&self, address: Ipv4Addr) -> Endpoint {
        Endpoint { address, http_port: self.site().http.port }
    }

    /// Wall-clock time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    pub(crate) fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.entropy.fill(&mut bytes);
        bytes
    }

    /// Returns a new ID for one request, or for one action of meshd itself.
    pub fn new_correlation(&self) -> CorrelationId {
        CorrelationId(self.random())
    }

    /// Returns the audit context of an action of meshd itself.
    pub fn own_audit_context(&self, verb: Verb) -> AuditContext {
        AuditContext::new(Principal::Meshd, verb, self.new_correlation())
    }

    /// Returns the audit context of an action of a node.
    pub(crate) fn node_audit_context(&self, verb: Verb) -> AuditContext {
        AuditContext::new(Principal::Node, verb, self.new_correlation())
    }
}
