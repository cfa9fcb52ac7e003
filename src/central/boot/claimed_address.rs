//! Checks an address that a machine took by its own word, before the address is bound to it. Where
//! another server leases addresses, a machine may take any address in a DHCP exchange of its own:
//! that of a victim, or of a router.

use crate::boot::BootService;
use meshd_model::{boot::Refusal, fleet::BootSession};
use meshd_store::StoreError;
use meshd_types::{MacAddr, NodeId, failpoint};
use std::{collections::BTreeSet, net::Ipv4Addr};

/// Maximum number of addresses that are probed at the same time; each takes a second. Further
/// machines wait.
pub(super) const MAX_PROBES: usize = 64;

impl BootService {
    /// Checks once for each boot session that its address belongs to nobody else. Ends the session
    /// and raises an alarm if it does: the machine must repeat DHCP. An address that meshd leased,
    /// or that is bound to the machine already, is not checked.
    pub(super) async fn check_claimed_address(
        &self,
        session: &BootSession,
        id: NodeId,
        address: Ipv4Addr,
    ) -> Result<(), Refusal> {
        if session.is_relayed
            || !self.is_unproven(session.mac, address)
            || !failpoint::defends("claimed-address")
        {
            return Ok(());
        }
        let _permit = self.address_probes.acquire().await;
        // Another request of this session may have been answered meanwhile.
        if !self.is_unproven(session.mac, address) {
            return Ok(());
        }
        if self.env.store.read(|model| model.session(session.id).is_none_or(|boot| boot.ended)) {
            return Err(Refusal::NoSession);
        }
        let owner = match self.is_infrastructure(address) {
            true => Some("a router or server of the site".to_owned()),
            false => {
                let holders = self.env.lan.holders(address).await;
                other_than(holders, session.mac).map(|other| format!("{other} on the wire"))
            }
        };
        let Some(owner) = owner else { return Ok(()) };
        let ended = self.env.store.commit(|tx| {
            tx.edit_session(session.id, |session| session.ended = true);
            Ok::<_, StoreError>(())
        });
        ended.await.map_err(|error| super::script::store_refusal(&error))?;
        let detail = format!(
            "{} took {address} by DHCP to boot as {id}, but the address belongs to {owner}",
            session.mac
        );
        Err(self.refuse_impersonation(id, session.id, address, detail).await)
    }

    /// True if only the machine itself claims that it has an address.
    pub(super) fn is_unproven(&self, machine: MacAddr, address: Ipv4Addr) -> bool {
        let is_bound = self.env.lan.pinned(address).is_some_and(|(mac, _)| mac == machine);
        let is_leased = || {
            self.env
                .store
                .read(|model| model.lease(address).is_some_and(|lease| lease.mac == machine))
        };
        !is_bound && !is_leased()
    }

    /// Returns another machine that answers for an address, unless the address is known to be that
    /// of this machine.
    pub(super) async fn other_holder(
        &self,
        address: Ipv4Addr,
        machine: MacAddr,
    ) -> Option<MacAddr> {
        if !self.is_unproven(machine, address) {
            return None;
        }
        let _permit = self.address_probes.acquire().await;
        other_than(self.env.lan.holders(address).await, machine)
    }

    /// True for the address of a router or server that the site or this host's routes name: it is
    /// never bound to a machine. DHCP packets name servers too, but any machine may send one that
    /// names the address of a victim.
    pub(super) fn is_infrastructure(&self, address: Ipv4Addr) -> bool {
        let site = self.env.site();
        let is_in_site =
            site.segments.iter().filter_map(|segment| segment.subnet.as_ref()).any(|subnet| {
                subnet.router == Some(address)
                    || subnet.dns.contains(&address)
                    || subnet.ntp.contains(&address)
            });
        is_in_site || self.env.lan.default_router() == Some(address)
    }
}

fn other_than(holders: BTreeSet<MacAddr>, machine: MacAddr) -> Option<MacAddr> {
    holders.into_iter().find(|holder| *holder != machine)
}
