//! Who is asking? The script step is the first to see UUID, serial and boot MAC together, and decides here.

use super::{Fingerprint, Node};
use crate::id::{Basis, DenyList, Hardware, MacAddr, NodeId};

/// A machine as the script step sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// What its ID was derived from.
    pub basis: Basis,
    /// What it shows of its hardware. `macs` holds the boot NIC's only.
    pub fingerprint: Fingerprint,
    /// The NIC that boots.
    pub mac: MacAddr,
}

/// Why the known node cannot be the machine that asks now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The known node's link answers.
    pub link_is_live: bool,
    /// The known node has an open boot session on another NIC.
    pub boots_elsewhere: bool,
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identified {
    /// Never seen before.
    New,
    /// The known node.
    Known,
    /// The known node with other parts.
    HardwareChanged {
        /// What differs.
        detail: String,
    },
    /// Another machine with the same ID.
    Collision {
        /// What differs.
        detail: String,
    },
}

impl Sighting {
    /// From what a machine tells; `None` when that is nothing that identifies.
    pub fn of(hardware: &Hardware, mac: MacAddr, deny: &DenyList) -> Option<Self> {
        let basis = hardware.basis(deny)?;
        let fingerprint = Fingerprint {
            uuid: hardware.uuid,
            manufacturer: hardware.manufacturer.trim().to_owned(),
            product: hardware.product.trim().to_owned(),
            serial: hardware.serial.trim().to_owned(),
            board_serial: String::new(),
            macs: [mac].into(),
        };
        Some(Sighting { basis, fingerprint, mac })
    }

    /// The ID.
    pub fn node_id(&self) -> NodeId {
        self.basis.node_id()
    }
}

/// Compares a sighting with the node that has its ID.
pub fn identify(known: Option<&Node>, sighting: &Sighting, claim: Claim) -> Identified {
    let Some(known) = known else { return Identified::New };
    let (ours, theirs) = (&known.fingerprint, &sighting.fingerprint);
    let same_nic = ours.macs.contains(&sighting.mac);
    let same_serial = !ours.serial.is_empty() && ours.serial == theirs.serial;
    let other_serial = !ours.serial.is_empty() && !theirs.serial.is_empty() && ours.serial != theirs.serial;
    if same_nic && !other_serial {
        return Identified::Known;
    }
    let detail = difference(known, sighting);
    if claim.link_is_live || claim.boots_elsewhere || !(same_nic || same_serial) {
        return Identified::Collision { detail };
    }
    Identified::HardwareChanged { detail }
}

fn difference(known: &Node, sighting: &Sighting) -> String {
    let shown = |serial: &str| if serial.is_empty() { "none".to_owned() } else { format!("`{serial}`") };
    let macs: Vec<String> = known.fingerprint.macs.iter().map(MacAddr::to_string).collect();
    format!(
        "known with MAC {} and serial {}; now MAC {} and serial {}",
        macs.join(", "),
        shown(&known.fingerprint.serial),
        sighting.mac,
        shown(&sighting.fingerprint.serial)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Timestamp;

    fn sighting(mac: u8, serial: &str) -> Sighting {
        let hardware = Hardware {
            uuid: "01020304-0506-0708-090a-0b0c0d0e0f10".parse().ok(),
            serial: serial.to_owned(),
            ..Hardware::default()
        };
        Sighting::of(&hardware, MacAddr([2, 0, 0, 0, 0, mac]), &DenyList::new()).expect("a UUID is there")
    }

    fn known(mac: u8, serial: &str) -> Node {
        let Sighting { basis, fingerprint, mac } = sighting(mac, serial);
        Node::discovered(basis, fingerprint, mac, Timestamp::from_millis(0))
    }

    #[test]
    fn the_same_machine_is_known_even_while_its_old_link_looks_alive() {
        let claim = Claim { link_is_live: true, boots_elsewhere: true };
        assert_eq!(identify(Some(&known(1, "A")), &sighting(1, "A"), claim), Identified::Known);
        assert_eq!(identify(None, &sighting(1, "A"), claim), Identified::New);
    }

    #[test]
    fn a_new_nic_in_a_machine_that_is_off_is_changed_hardware() {
        let changed = identify(Some(&known(1, "A")), &sighting(2, "A"), Claim::default());
        assert!(matches!(changed, Identified::HardwareChanged { .. }), "{changed:?}");
    }

    #[test]
    fn a_second_machine_is_a_collision_while_the_first_one_lives() {
        let claims =
            [Claim { link_is_live: true, ..Claim::default() }, Claim { boots_elsewhere: true, ..Claim::default() }];
        for claim in claims {
            let other = identify(Some(&known(1, "A")), &sighting(2, "A"), claim);
            assert!(matches!(other, Identified::Collision { .. }), "{other:?}");
        }
    }

    #[test]
    fn a_machine_with_nothing_in_common_is_a_collision_even_when_the_first_is_off() {
        for serial in ["B", ""] {
            let other = identify(Some(&known(1, "A")), &sighting(2, serial), Claim::default());
            assert!(matches!(other, Identified::Collision { .. }), "{other:?}");
        }
        let without_serials = identify(Some(&known(1, "")), &sighting(2, ""), Claim::default());
        assert!(matches!(without_serials, Identified::Collision { .. }), "two empty serials do not agree");
    }
}
