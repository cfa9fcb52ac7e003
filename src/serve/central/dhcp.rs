//! A machine asked for an address: its boot session opens, or goes on.

use super::Central;
use crate::fleet::{Actor, BootSession, Event, EventKind, Exchange, Lease, Stage};
use crate::id::{BootSessionId, ClientArch, MacAddr, SystemUuid, Timestamp};
use crate::store::{StoreError, Tx};
use std::net::Ipv4Addr;

/// One DHCP exchange, as the engine understood it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhcpSeen {
    /// Who.
    pub mac: MacAddr,
    /// Firmware, iPXE, or an operating system.
    pub exchange: Exchange,
    /// Option 97, if there was one that can be read.
    pub uuid: Option<SystemUuid>,
    /// Option 93.
    pub arch: Option<ClientArch>,
    /// The address that the machine has or is given; `None` in proxy mode.
    pub address: Option<Ipv4Addr>,
    /// A lease to be kept, when the exchange gave or renewed one.
    pub lease: Option<Lease>,
}

impl Central {
    /// Stores the lease and opens or refreshes the boot session, in one flush. The answer may go out once this returned.
    pub async fn dhcp_seen(&self, seen: DhcpSeen) -> Result<(), StoreError> {
        let now = self.now();
        let fresh = BootSessionId(self.random());
        self.store
            .commit(|tx| {
                if let Some(lease) = &seen.lease {
                    tx.put_lease(lease.clone());
                }
                let session = current_session(tx, &seen, fresh, now);
                if let Some(session) = session {
                    tx.put_session(session);
                }
                Ok(())
            })
            .await
    }

    /// A DISCOVER could not be answered: every address is taken.
    pub async fn pool_exhausted(&self, interface: &str) {
        if !self.alarms.allow(self.clock.monotonic(), interface) {
            return;
        }
        tracing::error!(interface, "DHCP pool exhausted; widen [dhcp].range or shorten its lease");
        let detail = format!("every address of the pool on {interface} is leased; widen [dhcp].range");
        let event = Event::new(self.now(), Actor::Central, EventKind::PoolExhausted, detail);
        self.record(event).await;
    }
}

/// The session after this exchange, or `None` where it belongs to none: an operating system that meshd did not boot.
fn current_session(tx: &mut Tx<'_>, seen: &DhcpSeen, fresh: BootSessionId, now: Timestamp) -> Option<BootSession> {
    let stage = match seen.exchange {
        Exchange::Firmware => Stage::Dhcp,
        Exchange::Ipxe => Stage::IpxeDhcp,
        Exchange::Os => Stage::OsDhcp,
    };
    let newest = tx.before().newest_session(seen.mac).filter(|session| session.continues(seen.exchange, now));
    let mut session = match newest {
        Some(session) => session.clone(),
        None if seen.exchange == Exchange::Os => return None,
        None => {
            let node = tx.before().node_of_mac(seen.mac).map(|node| node.id);
            let started = Event::new(now, Actor::Node, EventKind::BootStarted, format!("MAC {}", seen.mac));
            tx.event(started.of_node(node).in_session(fresh));
            BootSession { stages: Vec::new(), ..BootSession::open(fresh, seen.mac, stage, now) }
        }
    };
    if session.mark(stage, now) {
        let reached = Event::new(now, Actor::Node, EventKind::Stage { stage }, "");
        tx.event(reached.of_node(session.node).in_session(session.id));
    }
    if seen.exchange != Exchange::Os {
        session.refreshed_at = now;
    }
    session.address = seen.address.or(session.address);
    session.uuid = seen.uuid.or(session.uuid);
    if seen.exchange == Exchange::Firmware || session.arch.is_none() {
        session.arch = seen.arch.or(session.arch);
    }
    Some(session)
}
