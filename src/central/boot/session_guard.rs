//! Keeps the boot of a machine from other machines: a script is for the address of its session alone, and an address that changes ends
//! the boot.

use crate::{
    boot::{BootService, DhcpSeen},
    environment::alarms::{Alarm, raise},
};
use meshd_model::{
    boot::Refusal,
    fleet::{Actor, BootSession, ConditionKind, Event, EventKind, ObservedMachine},
};
use meshd_store::Tx;
use meshd_types::{BootSessionId, NodeId, Timestamp, fail};
use std::net::Ipv4Addr;

impl BootService {
    /// Returns the boot session of this request: opened by DHCP of this MAC within the window, from the
    /// leased address. In proxy mode, that is the address that the machine was seen to take. Before that
    /// no request is answered, because the first requester could be an attacker.
    pub(super) async fn own_session(&self, sighting: &ObservedMachine, from: Ipv4Addr) -> Result<BootSession, Refusal> {
        let now = self.env.now();
        let session = self.env.store.read(|model| model.newest_session(sighting.mac).cloned());
        let own = session.as_ref().filter(|session| session.is_fresh(now) && session.address == Some(from));
        let wire = self.env.check_neighbour(from, |mac| *mac == sighting.mac || !fail::defends("boot-neighbour")).await;
        if let (Some(own), Ok(())) = (own, &wire) {
            return Ok(own.clone());
        }
        let id = sighting.node_id();
        let seen = match (wire, session) {
            (Err(wire), _) => wire,
            (Ok(()), None) => "DHCP never saw that MAC".to_owned(),
            (Ok(()), Some(session)) if session.ended => "its boot was ended after its address changed".to_owned(),
            (Ok(()), Some(session)) => match session.address {
                Some(own) if own != from => format!("its address is {own}"),
                None => "it was not heard to take an address yet".to_owned(),
                _ => "its last DHCP exchange is too long ago".to_owned(),
            },
        };
        let detail = format!("{from} asked for the boot of {id} as MAC {}: {seen}", sighting.mac);
        self.env
            .alarm(Alarm {
                kind: ConditionKind::BootImpersonated,
                node: Some(id),
                session: None,
                cause: format!("script from {from}"),
                detail,
            })
            .await;
        Err(Refusal::NoSession)
    }

    pub(super) async fn impersonated(&self, id: NodeId, session: BootSessionId, from: Ipv4Addr, detail: String) {
        let kind = ConditionKind::BootImpersonated;
        let cause = format!("script from {from}");
        self.env.alarm(Alarm { kind, node: Some(id), session: Some(session), cause, detail }).await;
    }
}

/// True if the machine of an open boot session appears with another address without a new exchange. A machine keeps its
/// address or sends a DISCOVER; anything else is a forgery.
pub(super) fn moved(session: &BootSession, seen: &DhcpSeen, now: Timestamp) -> bool {
    let other = session.address.is_some_and(|known| seen.address.is_some_and(|address| address != known));
    let is_open = session.is_fresh(now) || session.holds_address(now);
    other && is_open && !seen.discovered && fail::defends("session-address-change")
}

/// Ends a boot session: it gets no capability any more, and its tokens are void.
pub(super) fn end_session(tx: &mut Tx<'_>, session: BootSession, seen: &DhcpSeen, now: Timestamp) -> Option<NodeId> {
    let node = session.node.or_else(|| tx.before().node_of_mac(session.mac).map(|node| node.id));
    let shown = |address: Option<Ipv4Addr>| address.map_or_else(|| "none".to_owned(), |address| address.to_string());
    let detail = format!(
        "the address of {} changed from {} to {} without a new DHCP exchange; its boot is ended",
        session.mac,
        shown(session.address),
        shown(seen.address)
    );
    let id = session.id;
    tx.put_session(BootSession { ended: true, ..session });
    let Some(node) = node else {
        let kind = EventKind::Raised { condition: ConditionKind::BootImpersonated };
        tx.event(Event::new(now, Actor::Stranger, kind, detail).in_session(id));
        return None;
    };
    let tokens: Vec<_> =
        tx.before().tokens_of(node).filter(|token| token.session == id).map(|token| token.hash).collect();
    tokens.into_iter().for_each(|hash| tx.remove_token(hash));
    raise(tx, node, id, ConditionKind::BootImpersonated, &detail, now);
    Some(node)
}
