//! DHCP exchanges: leases are stored, boot sessions are opened and continued.

use crate::{
    boot::{BmcClaim, BootService, FoundBmc},
    environment::{
        alarms::{Alarm, raise_condition},
        records::condition_event,
    },
};
use meshd_model::fleet::{
    Actor, BootSession, ConditionKind, DhcpClient, DhcpRequest, Event, EventKind, Lease, Node,
    RelayPort, Stage,
};
use meshd_store::{StoreError, Tx};
use meshd_types::{BootSessionId, ClientArch, MacAddr, NodeId, SystemUuid, Timestamp, failpoint};
use std::{collections::BTreeMap, net::Ipv4Addr};

/// A DHCP exchange that the engine parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhcpExchange {
    pub mac: MacAddr,
    pub client: DhcpClient,
    /// Option 97, if valid.
    pub uuid: Option<SystemUuid>,
    /// Option 93.
    pub arch: Option<ClientArch>,
    /// The packet of the machine is a DISCOVER.
    pub is_discover: bool,
    /// Seconds since the machine began to ask, by its own count.
    pub secs: u16,
    /// The machine's address; `None` in the offer or acknowledgement of a proxy.
    pub address: Option<Ipv4Addr>,
    /// The lease that the exchange created or renewed.
    pub lease: Option<Lease>,
    /// The exchange began with a DISCOVER, so the machine accepts another address.
    pub discovered: bool,
    /// The port of the machine according to the relay.
    pub relay_port: Option<RelayPort>,
    pub is_relayed: bool,
    /// What a BMC says of itself.
    pub bmc: Option<BmcClaim>,
}

/// A change of a stored lease. It applies only while the stored lease has the owner of `before` and
/// does not end earlier, so that it cannot undo a newer change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseChange {
    pub before: Lease,
    /// `None` removes the lease.
    pub after: Option<Lease>,
}

/// A change that the DHCP engine wants to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DhcpChange {
    Exchange(DhcpExchange),
    /// A lease of a VM's NIC, or of a client behind a router; it opens no boot session.
    LeaseGranted(Lease),
    LeaseChanged(LeaseChange),
}

impl BootService {
    /// Stores leases and opens or refreshes boot sessions, in order and in one flush. Replies that
    /// depend on them may be sent after this returns.
    pub async fn apply_dhcp_changes(&self, changes: &[DhcpChange]) -> Result<(), StoreError> {
        let now = self.env.now();
        let mut ended = Vec::new();
        let recorded = self.env.store.commit(|tx| {
            // Sessions that this transaction opens are not visible in the store yet.
            let mut opened = BTreeMap::new();
            for change in changes {
                match change {
                    DhcpChange::Exchange(exchange) => {
                        ended.extend(self.record_exchange(tx, exchange, &mut opened, now))
                    }
                    // The VM may have been deleted since its request.
                    DhcpChange::LeaseGranted(lease)
                        if lease.vm.is_some_and(|vm| tx.vm(vm).is_none()) => {}
                    DhcpChange::LeaseGranted(lease) => tx.put_lease(lease.clone()),
                    DhcpChange::LeaseChanged(change) => change_lease(tx, change),
                }
            }
            Ok(())
        });
        recorded.await?;
        failpoint::point("dhcp-committed");
        self.pin_leases(changes);
        self.find_bmcs(changes, now);
        for node in ended {
            self.enrolment.capabilities.lock().void_node(node);
        }
        Ok(())
    }

    /// Remembers the BMCs that have leases.
    fn find_bmcs(&self, changes: &[DhcpChange], seen_at: Timestamp) {
        for change in changes {
            if let DhcpChange::Exchange(exchange) = change
                && let DhcpExchange { mac, bmc: Some(claim), lease: Some(lease), .. } = exchange
            {
                let claim = claim.clone();
                self.find_bmc(FoundBmc { mac: *mac, address: lease.address, claim, seen_at });
            }
        }
    }

    /// Binds leased addresses to the machines that boot from them. Where another server leases
    /// addresses, a machine may claim any address by DHCP: there the script request binds it.
    fn pin_leases(&self, changes: &[DhcpChange]) {
        for change in changes {
            let DhcpChange::Exchange(DhcpExchange {
                mac,
                lease: Some(lease),
                is_relayed: false,
                ..
            }) = change
            else {
                continue;
            };
            let address = lease.address;
            let boots = |session: &BootSession| {
                session.address == Some(address) && session.is_fresh(self.env.now())
            };
            if self.env.store.read(|model| model.newest_session(*mac).is_some_and(boots)) {
                self.pin_lease(address, *mac);
            }
        }
    }

    /// Records an exchange. Returns the node whose boot it ended.
    fn record_exchange(
        &self,
        tx: &mut Tx<'_>,
        exchange: &DhcpExchange,
        opened: &mut BTreeMap<MacAddr, BootSessionId>,
        now: Timestamp,
    ) -> Option<NodeId> {
        if let Some(lease) = &exchange.lease {
            tx.put_lease(lease.clone());
        }
        let newest = opened.get(&exchange.mac).copied();
        // The running system renews its lease while it loads a warm boot.
        let begun = || tx.before().sessions_of(exchange.mac).find(|session| !session.is_staged());
        let newest = newest.or_else(|| begun().map(|session| session.id));
        let session = newest
            .and_then(|id| tx.session(id))
            .filter(|session| has_changed_address(session, exchange, now));
        if let Some(session) = session.cloned() {
            return end_session(tx, session, exchange, now);
        }
        if let Some(mut session) =
            current_session(tx, exchange, newest, now, || BootSessionId(self.env.random()))
        {
            if newest != Some(session.id) {
                session.ipv6_since = self.take_ipv6_boot(exchange.mac, now);
            }
            opened.insert(exchange.mac, session.id);
            tx.put_session(session);
        }
        None
    }

    /// Returns the node of a NIC, by the ID in the site's reservations.
    pub fn node_of_mac(&self, mac: MacAddr) -> Option<NodeId> {
        let snapshot = self.env.snapshot();
        self.env
            .store
            .read(|model| model.node_of_mac(mac).map(|node| snapshot.reserved_node_id(node)))
    }

    /// Records an event about the addresses of a segment. `cause` is the key of the rate limit.
    pub async fn dhcp_event(&self, kind: EventKind, cause: &str, detail: String) {
        if self.env.allows(cause) {
            self.env.record(Event::new(self.env.now(), Actor::Central, kind, detail)).await;
        }
    }

    /// Records that another machine used the MAC address of a NIC in DHCP. `sender` is the key of
    /// the rate limit.
    pub async fn dhcp_alarm(
        &self,
        mac: MacAddr,
        kind: ConditionKind,
        sender: &str,
        detail: String,
    ) {
        let (node, session) = self.env.store.read(|model| {
            (
                model.node_of_mac(mac).map(|node| node.id),
                model.newest_session(mac).map(|session| session.id),
            )
        });
        // Alarms about other machines must not exhaust the limit of this one.
        let target = node.map_or_else(|| "an unknown node".to_owned(), |node| node.to_string());
        self.env
            .alarm(Alarm {
                kind,
                node,
                session,
                cause: format!("DHCP by {sender} as {target}"),
                detail,
            })
            .await;
    }

    /// Shortens leases that end later than a lease that begins now: the clock was ahead when they
    /// were stored.
    pub async fn shorten_leases_of_wrong_clock(&self) -> Result<(), StoreError> {
        let site = self.env.site();
        let Some(longest) =
            site.segments.iter().filter_map(|segment| Some(segment.subnet.as_ref()?.lease)).max()
        else {
            return Ok(());
        };
        let latest = self.env.now().after(longest);
        let stored = self.env.store.commit(|tx| {
            let late: Vec<Lease> = tx.before().leases().filter(|lease| lease.expires_at > latest).cloned().collect();
            for lease in late {
                tracing::warn!(address = %lease.address, until = %lease.expires_at, "shortened a lease: the clock was wrong");
                tx.put_lease(Lease { expires_at: latest, ..lease });
            }
            Ok(())
        });
        stored.await
    }

    /// All DHCP leases, for the DHCP engine to start with.
    pub fn leases(&self) -> Vec<Lease> {
        self.env.store.read(|model| model.leases().cloned().collect())
    }

    /// Collects the views of leases, by address. `view` receives the node of the NIC; `None` omits
    /// the lease.
    pub fn collect_leases<R>(
        &self,
        mut view: impl FnMut(&Lease, Option<&Node>) -> Option<R>,
    ) -> Vec<R> {
        self.env.store.read(|model| {
            model.leases().filter_map(|lease| view(lease, model.node_of_mac(lease.mac))).collect()
        })
    }

    /// Number of leases on record, with expired ones.
    pub fn lease_count(&self) -> usize {
        self.env.store.read(|model| model.leases().count())
    }

    /// Reads a boot, and the boot of the same NIC before it; `None` if the boot is not on record.
    pub fn read_boot<R>(
        &self,
        id: BootSessionId,
        read: impl FnOnce(&BootSession, Option<&BootSession>) -> R,
    ) -> Option<R> {
        self.env.store.read(|model| {
            let boot = model.session(id)?;
            Some(read(boot, model.sessions_of(boot.mac).skip_while(|other| other.id != id).nth(1)))
        })
    }
}

fn change_lease(tx: &mut Tx<'_>, change: &LeaseChange) {
    let before = &change.before;
    // The engine shortens a stored lease that ends later than a new one would.
    let is_before = |stored: &Lease| {
        (stored.mac, stored.vm) == (before.mac, before.vm) && stored.expires_at >= before.expires_at
    };
    if tx.lease(before.address).is_some_and(is_before) {
        match &change.after {
            Some(lease) => tx.put_lease(lease.clone()),
            None => tx.remove_lease(before.address),
        }
    }
}

/// True if the machine of an open boot session appears with another address without a new exchange.
/// A machine keeps its address or sends a DISCOVER; anything else is a forgery.
fn has_changed_address(session: &BootSession, exchange: &DhcpExchange, now: Timestamp) -> bool {
    let other = session
        .address
        .is_some_and(|known| exchange.address.is_some_and(|address| address != known));
    let is_open = session.is_fresh(now) || session.holds_address(now);
    other && is_open && !exchange.discovered && failpoint::defends("session-address-change")
}

/// Ends a boot session: it receives no further capability, and its tokens become void.
fn end_session(
    tx: &mut Tx<'_>,
    session: BootSession,
    exchange: &DhcpExchange,
    now: Timestamp,
) -> Option<NodeId> {
    let node = session.node.or_else(|| tx.before().node_of_mac(session.mac).map(|node| node.id));
    let shown = |address: Option<Ipv4Addr>| {
        address.map_or_else(|| "none".to_owned(), |address| address.to_string())
    };
    let detail = format!(
        "the address of {} changed from {} to {} without a new DHCP exchange; its boot is ended",
        session.mac,
        shown(session.address),
        shown(exchange.address)
    );
    let id = session.id;
    tx.put_session(BootSession { ended: true, ..session });
    let Some(node) = node else {
        tx.event(
            condition_event(now, Actor::Stranger, ConditionKind::BootImpersonated, detail)
                .in_session(id),
        );
        return None;
    };
    let tokens: Vec<_> = tx
        .before()
        .tokens_of(node)
        .filter(|token| token.session == id)
        .map(|token| token.hash)
        .collect();
    tokens.into_iter().for_each(|hash| tx.remove_token(hash));
    raise_condition(tx, node, id, ConditionKind::BootImpersonated, &detail, now);
    Some(node)
}

/// Returns the session after this exchange; `None` for an operating system that meshd did not boot.
fn current_session(
    tx: &mut Tx<'_>,
    exchange: &DhcpExchange,
    newest: Option<BootSessionId>,
    now: Timestamp,
    new_id: impl FnOnce() -> BootSessionId,
) -> Option<BootSession> {
    let stage = match exchange.client {
        DhcpClient::Firmware => Stage::Dhcp,
        DhcpClient::Ipxe => Stage::IpxeDhcp,
        DhcpClient::Os => Stage::OsDhcp,
    };
    let newest = newest
        .and_then(|id| tx.session(id))
        .filter(|session| session.continues(exchange.client, now))
        .cloned();
    let mut session = match newest {
        Some(session) => session,
        None if exchange.client == DhcpClient::Os => return None,
        None => {
            let new_id = new_id();
            let node = tx.before().node_of_mac(exchange.mac).map(|node| node.id);
            let started = Event::new(
                now,
                Actor::Node,
                EventKind::BootStarted,
                format!("MAC {}", exchange.mac),
            );
            tx.event(started.of_node(node).in_session(new_id));
            BootSession {
                stages: Vec::new(),
                ..BootSession::open(new_id, exchange.mac, stage, now)
            }
        }
    };
    if session.mark(stage, now) {
        let reached = Event::new(now, Actor::Node, EventKind::Stage { stage }, "");
        // Before its script, the NIC identifies a known machine, and its events belong to the node.
        let node =
            session.node.or_else(|| tx.before().node_of_mac(session.mac).map(|node| node.id));
        tx.event(reached.of_node(node).in_session(session.id));
    }
    if exchange.client != DhcpClient::Os {
        session.refreshed_at = now;
    }
    let DhcpExchange { client, arch, is_discover, secs, .. } = *exchange;
    session.record_dhcp(DhcpRequest { client, arch, is_discover, secs }, now);
    session.address = exchange.address.or(session.address);
    session.is_relayed = exchange.is_relayed;
    // An operating system renews its lease past the relay; firmware and iPXE show their port.
    let known_port = session.relay_port.filter(|_| exchange.client == DhcpClient::Os);
    session.relay_port = exchange.relay_port.clone().or(known_port);
    session.uuid = exchange.uuid.or(session.uuid);
    if exchange.client == DhcpClient::Firmware || session.arch.is_none() {
        session.arch = exchange.arch.or(session.arch);
    }
    Some(session)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_store::Store;

    /// The engine shortens stored leases after a shorter lease time in site.toml.
    #[tokio::test]
    async fn change_of_a_shortened_lease_is_applied_and_that_of_another_owner_is_not() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Store::open(dir.path()).expect("a store");
        let lease = |mac: u8, millis| Lease {
            mac: MacAddr([2, 0, 0, 0, 0, mac]),
            address: Ipv4Addr::new(10, 77, 0, 100),
            expires_at: Timestamp::from_millis(millis),
            vm: None,
        };
        let committed = store.commit(|tx| {
            tx.put_lease(lease(1, 24));
            let released = |mac| LeaseChange { before: lease(mac, 1), after: Some(lease(mac, 0)) };
            let ends = [released(2), released(1), LeaseChange { before: lease(1, 1), after: None }]
                .map(|change| {
                    change_lease(tx, &change);
                    tx.lease(change.before.address).map(|lease| lease.expires_at.millis())
                });
            Ok::<_, StoreError>(ends)
        });
        // The lease has ended before the end that the last change knows: something newer ended it.
        assert_eq!(committed.await.expect("stored"), [Some(24), Some(0), Some(0)]);
    }
}
