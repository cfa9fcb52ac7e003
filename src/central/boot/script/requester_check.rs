//! Protects the boot of a machine against other machines: only the address of the session receives
//! the script, and a changed address ends the boot.

use crate::{
    boot::BootService,
    environment::{alarms::Alarm, lan_client::LanClient},
};
use meshd_model::{
    boot::Refusal,
    fleet::{BootSession, ConditionKind, ObservedMachine, Stage},
};
use meshd_types::{BootSessionId, MacAddr, NodeId, failpoint};
use std::net::Ipv4Addr;

impl BootService {
    /// Verifies on the wire that a request comes from the machine of a session; binds its address,
    /// ends sessions and raises alarms. Returns the session: opened by DHCP of this MAC within the
    /// window, from the leased address. In proxy mode, that is the address that the machine was
    /// seen to take. Before that no request is answered, because the first requester could be an
    /// attacker.
    pub(super) async fn verify_requester(
        &self,
        machine: &ObservedMachine,
        client: &LanClient,
    ) -> Result<BootSession, Refusal> {
        let now = self.env.now();
        let from = client.ipv4();
        let session = self.env.store.read(|model| model.newest_session(machine.mac).cloned());
        let is_current = |session: &&BootSession| {
            session.is_fresh(now)
                && session.address == Some(from)
                && !has_its_overlay(session)
                && !is_warm(session)
        };
        let current = session.as_ref().filter(is_current);
        let is_own = |mac: &MacAddr| *mac == machine.mac || !failpoint::defends("boot-neighbour");
        let wire_check = self.env.check_neighbour(client, is_own).await;
        if let (Some(current), Ok(())) = (current, &wire_check) {
            self.check_claimed_address(current, machine.node_id(), from).await?;
            if self.may_bind(current.mac, machine.node_id(), from) {
                // The answer must reach this machine, whatever ARP says from here on.
                self.pin(from, current.mac);
            }
            return Ok(current.clone());
        }
        let is_foreign = wire_check.is_err();
        let id = machine.node_id();
        let reason = match (wire_check, session) {
            (Err(wire_check), _) => wire_check,
            (Ok(()), None) => "DHCP never saw that MAC".to_owned(),
            (Ok(()), Some(session)) if session.ended => {
                "its boot was ended by an alarm about its address".to_owned()
            }
            (Ok(()), Some(session)) if has_its_overlay(&session) => {
                "its boot has its overlay, and the next one begins with a DHCP exchange".to_owned()
            }
            (Ok(()), Some(session)) if is_warm(&session) => {
                "its boot is warm, and its node fetches it over its link".to_owned()
            }
            (Ok(()), Some(session)) => match session.address {
                Some(current) if current != from => format!("its address is {current}"),
                None => "it has taken no address yet".to_owned(),
                _ => "its last DHCP exchange is too old".to_owned(),
            },
        };
        let detail = format!("{from} asked for the boot of {id} as MAC {}: {reason}", machine.mac);
        if is_foreign && !client.claim_alarm(self.known_node(id)) {
            return Err(Refusal::NoSession);
        }
        Err(self.refuse_impersonation(id, None, from, detail).await)
    }

    /// Defers the boot of a node that was online a moment ago and whose reboot nobody announced,
    /// until it counts as down: a task of the node, or another machine, may ask while its link is
    /// interrupted. The caller has found no link that answers. A machine with another NIC is
    /// refused as a collision instead.
    pub(super) fn check_reboot_announced(
        &self,
        node: NodeId,
        session: &BootSession,
    ) -> Result<(), Refusal> {
        let silence = self.env.store.read(|model| {
            let node =
                model.node(node).filter(|node| node.fingerprint.macs.contains(&session.mac))?;
            self.links.unannounced_silence(model, node, session.id)
        });
        let Some(silence) = silence.filter(|_| failpoint::defends("boot-unannounced")) else {
            return Ok(());
        };
        let remaining = self.env.site().agent.offline_after.saturating_sub(silence);
        // At `offline_after` itself, the node still counts as online.
        Err(Refusal::RecentlyOnline {
            seconds: u32::try_from(remaining.as_secs()).unwrap_or(u32::MAX).saturating_add(1),
        })
    }

    /// True if the address of a boot may be bound to its machine. Until it is approved, a machine
    /// gets no secrets: it must not keep an address that only it claims to have from a machine that
    /// is off.
    fn may_bind(&self, mac: MacAddr, id: NodeId, address: Ipv4Addr) -> bool {
        let is_approved = || {
            self.env.store.read(|model| model.node(id).is_some_and(|node| node.phase.is_admitted()))
        };
        !self.is_unproven(mac, address) || is_approved() || !failpoint::defends("approved-address")
    }

    fn known_node(&self, id: NodeId) -> Option<NodeId> {
        self.env.store.read(|model| model.node(id).map(|node| node.id))
    }

    /// Raises an alarm: a machine requests the boot of another one. Returns the refusal for it.
    pub(crate) async fn refuse_impersonation(
        &self,
        id: NodeId,
        session: impl Into<Option<BootSessionId>>,
        from: Ipv4Addr,
        detail: String,
    ) -> Refusal {
        // Alarms about other machines, known or invented, must not exhaust the limit of this one.
        let target = self
            .known_node(id)
            .map_or_else(|| "an unknown node".to_owned(), |known| known.to_string());
        let kind = ConditionKind::BootImpersonated;
        let cause = format!("script from {from} as {target}");
        self.env
            .alarm(Alarm { kind, node: Some(id), session: session.into(), cause, detail })
            .await;
        Refusal::NoSession
    }
}

/// True for a boot that the running node fetches over its link. No loader takes part in it.
fn is_warm(session: &BootSession) -> bool {
    session.warm.is_some() && failpoint::defends("warm-session-script")
}

/// True after a boot has its overlay or certificate. Each script repeats DHCP before it asks again,
/// which opens the next session.
fn has_its_overlay(session: &BootSession) -> bool {
    let has_reached = |stage| session.reached(stage).is_some();
    [Stage::Overlay, Stage::Enrolled].into_iter().any(has_reached)
        && failpoint::defends("session-one-overlay")
}
