//! NICs of VMs: the owner of a MAC address, and the network in which an IP address is unique. Pure.
//!
//! | card | its address is unique |
//! | --- | --- |
//! | without a bridge (of an earlier release; none is run) | no |
//! | on [`PRIVATE_BRIDGE`] | on its node, which gives the addresses there |
//! | on any other bridge | on the site |

use super::record::Vm;
use meshd_config::{MacPrefix, vm::derived_mac};
use meshd_proto::vm::{Nic, PRIVATE_BRIDGE, VmSpec};
use meshd_types::{MacAddr, SystemUuid, VmName};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// A card, as the site's DHCP knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedNic {
    /// UUID of the VM that owns it.
    pub vm: SystemUuid,
    /// What the guest is called.
    pub name: VmName,
    /// The card.
    pub mac: MacAddr,
    /// What is reserved for it in the site's networks.
    pub address: Option<Ipv4Addr>,
}

/// The addresses that belong to a slot: of whichever machine has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotCard {
    /// The card's.
    pub mac: MacAddr,
    /// In the site's networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
}

/// What became of cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardNews {
    /// These are all that there are.
    All(Vec<ReservedNic>),
    /// These have changed; `None`: it is no card any more.
    Changed(Vec<(MacAddr, Option<ReservedNic>)>),
}

impl Vm {
    /// Returns the NICs of the VM.
    pub fn cards(&self) -> impl Iterator<Item = ReservedNic> {
        let card = |nic: &Nic| ReservedNic {
            vm: self.uuid(),
            name: self.name().clone(),
            mac: nic.mac,
            address: site_address(nic),
        };
        self.own_nics().map(card)
    }

    /// Its cards but for those that are to have the addresses of a slot and have none.
    pub fn own_nics(&self) -> impl Iterator<Item = &Nic> {
        let has_none = |(index, nic): &(usize, &Nic)| nic.slot && nic.mac == no_mac(self.uuid(), *index);
        self.ask.spec.nics.iter().enumerate().filter(move |card| !has_none(card)).map(|(_, nic)| nic)
    }

    /// True if the other one has the same cards, by the same name.
    pub fn has_cards_of(&self, other: &Vm) -> bool {
        self.name() == other.name() && self.own_nics().eq(other.own_nics())
    }
}

/// Which addresses the slots of a machine have, in the order of the cards that say so; none while it has no slots. Only a network of the
/// site gives the second one.
pub fn fill_slot_cards(spec: &mut VmSpec, cards: Vec<SlotCard>) {
    let (uuid, mut cards) = (spec.uuid, cards.into_iter());
    for (index, nic) in spec.nics.iter_mut().enumerate().filter(|(_, nic)| nic.slot) {
        let card = cards.next();
        nic.mac = card.map_or_else(|| no_mac(uuid, index), |card| card.mac);
        nic.address = card.and_then(|card| card.address);
        nic.address = site_address(nic);
    }
}

/// What stands in place of a slot's MAC address while there is none.
fn no_mac(uuid: SystemUuid, index: usize) -> MacAddr {
    derived_mac(&MacPrefix::default(), uuid, index, 0)
}

/// The address that is reserved for a card, if no other card of the site may have it.
pub fn site_address(nic: &Nic) -> Option<Ipv4Addr> {
    nic.address.filter(|_| nic.bridge.as_ref().is_some_and(|bridge| bridge.as_str() != PRIVATE_BRIDGE))
}

/// The address that is reserved for a card, if no other card of its node may have it.
pub fn private_address(nic: &Nic) -> Option<Ipv4Addr> {
    nic.address.filter(|_| nic.bridge.as_ref().is_some_and(|bridge| bridge.as_str() == PRIVATE_BRIDGE))
}
