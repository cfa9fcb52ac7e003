//! Identifies the machine of a boot script request by UUID, serial number and boot MAC address.

use super::{
    phase::Phase,
    record::{ConflictingMachine, Fingerprint, Node},
};
use meshd_proto::Facts;
use meshd_types::{Basis, DenyList, Hardware, MacAddr, NodeId, Timestamp, failpoint, is_filler};
use std::time::Duration;

/// A machine at the script step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedMachine {
    /// Basis of its ID.
    pub basis: Basis,
    /// Hardware identity. `macs` holds only the boot NIC.
    pub fingerprint: Fingerprint,
    /// MAC address of the boot NIC.
    pub mac: MacAddr,
    /// Other bases that a different trust configuration would select. Excludes MAC addresses,
    /// because a NIC may be in another machine now.
    pub other_bases: Vec<Basis>,
}

/// Evidence that the known node is another machine than the requester.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdentityConflict {
    /// The agent of the known node answers on its link.
    pub link_is_live: bool,
    /// The known node has an open boot session on another NIC.
    pub boots_elsewhere: bool,
}

/// The result of an identification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identified {
    /// Unknown machine.
    New,
    Known,
    /// Known node with changed hardware; `detail` lists the identity fields that differ.
    HardwareChanged {
        detail: String,
    },
    /// Another machine with the same ID; `detail` lists the identity fields that differ.
    Collision {
        detail: String,
    },
}

impl ObservedMachine {
    /// Derives the node ID; `None` if no identity field is usable.
    pub fn from_hardware(hardware: &Hardware, mac: MacAddr, deny: &DenyList) -> Option<Self> {
        let basis = hardware.basis(deny)?;
        let fingerprint = Fingerprint {
            uuid: hardware.uuid,
            manufacturer: hardware.manufacturer.trim().to_owned(),
            product: hardware.product.trim().to_owned(),
            serial: hardware.serial.trim().to_owned(),
            board_serial: String::new(),
            macs: [mac].into(),
        };
        let is_other = |other: &Basis| !other.is_weak() && *other != basis;
        let other_bases = hardware.bases().filter(is_other).collect();
        Some(ObservedMachine { basis, fingerprint, mac, other_bases })
    }

    /// Returns the node ID of the machine.
    pub fn node_id(&self) -> NodeId {
        self.basis.node_id()
    }
}

/// Compares a machine with the node that has its ID. A removed node counts as unknown.
pub fn identify(
    known: Option<&Node>,
    sighting: &ObservedMachine,
    claim: IdentityConflict,
) -> Identified {
    let Some(known) = known.filter(|known| known.phase != Phase::Removed) else {
        return Identified::New;
    };
    let stored = &known.fingerprint;
    let observed = &sighting.fingerprint;
    let same_nic = stored.macs.contains(&sighting.mac);
    let serials = agree(&stored.serial, &observed.serial);
    if same_nic && serials != Some(false) {
        return Identified::Known;
    }
    let detail = difference(known, sighting);
    let boards = agree(&stored.board_serial, &observed.board_serial)
        .filter(|_| failpoint::defends("board-serial"));
    if claim.link_is_live
        || claim.boots_elsewhere
        || !(same_nic || serials == Some(true) || boards == Some(true))
    {
        return Identified::Collision { detail };
    }
    Identified::HardwareChanged { detail }
}

/// Compares two serial numbers; `None` if one is missing or a placeholder of the firmware.
fn agree(one: &str, other: &str) -> Option<bool> {
    let [one, other] = [one, other].map(|text| text.trim().to_lowercase());
    let is_valid = |text: &str| !text.is_empty() && !is_filler(text);
    (is_valid(&one) && is_valid(&other)).then_some(one == other)
}

fn difference(known: &Node, sighting: &ObservedMachine) -> String {
    let shown =
        |serial: &str| if serial.is_empty() { "none".to_owned() } else { format!("`{serial}`") };
    let macs: Vec<String> = known.fingerprint.macs.iter().map(MacAddr::to_string).collect();
    format!(
        "known with MAC {} and serial {}; now MAC {} and serial {}",
        macs.join(", "),
        shown(&known.fingerprint.serial),
        sighting.mac,
        shown(&sighting.fingerprint.serial)
    )
}

/// Maximum number of NICs recorded from a node's own reports: a compromised node could otherwise
/// claim every MAC address.
pub const MAX_MACS: usize = 128;
/// Maximum number of conflicting machines of a node.
pub const MAX_CONFLICTING_MACHINES: usize = 8;
/// Minimum interval between updates of a conflicting machine's record, because it sends two
/// requests a minute.
pub const CONFLICT_UPDATE_INTERVAL: Duration = Duration::from_secs(60);

impl ConflictingMachine {
    /// Returns a description of the machine.
    pub fn words(&self) -> String {
        let Fingerprint { manufacturer, product, serial, .. } = &self.fingerprint;
        let serial =
            if serial.is_empty() { "no serial".to_owned() } else { format!("serial {serial}") };
        let words = [format!("MAC {}", self.mac), manufacturer.clone(), product.clone(), serial];
        let from = self.address.map(|address| format!("at {address}"));
        words.into_iter().chain(from).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

impl Node {
    /// Returns true if the serial numbers prove another machine.
    pub fn differs(&self, sighting: &ObservedMachine) -> bool {
        agree(&self.fingerprint.serial, &sighting.fingerprint.serial) == Some(false)
    }

    /// Records a conflicting machine. Returns true if it is new.
    pub fn record_conflict(&mut self, conflicting: ConflictingMachine) -> bool {
        if let Some(known) =
            self.conflicting_machines.iter_mut().find(|known| known.mac == conflicting.mac)
        {
            *known = ConflictingMachine { since: known.since, ..conflicting };
            return false;
        }
        if self.conflicting_machines.len() >= MAX_CONFLICTING_MACHINES {
            // Replace the machine whose last claim is the oldest.
            let oldest = (0..self.conflicting_machines.len())
                .min_by_key(|at| self.conflicting_machines[*at].last);
            oldest.map(|at| self.conflicting_machines.remove(at));
        }
        self.conflicting_machines.push(conflicting);
        true
    }

    /// Returns true if [`Node::record_conflict`] would change the record significantly.
    pub fn is_conflict_update_due(&self, mac: MacAddr, now: Timestamp) -> bool {
        let known = self.conflicting_machines.iter().find(|known| known.mac == mac);
        known.is_none_or(|known| now.distance(known.last) >= CONFLICT_UPDATE_INTERVAL)
    }

    /// Removes a conflicting machine. Returns true if it was recorded.
    pub fn remove_conflict(&mut self, mac: MacAddr) -> bool {
        let before = self.conflicting_machines.len();
        self.conflicting_machines.retain(|conflicting| conflicting.mac != mac);
        self.conflicting_machines.len() != before
    }

    /// NICs that the node booted from or that an operator accepted, without those that only the
    /// node reported.
    pub fn seen_nics(&self) -> impl Iterator<Item = &MacAddr> + Clone {
        let is_seen =
            |mac: &&MacAddr| !self.reported_nics.contains(mac) || !failpoint::defends("hello-nics");
        self.fingerprint.macs.iter().filter(is_seen)
    }

    /// Adds a NIC that the node booted from or that an operator accepted. Returns true if it was
    /// not known so.
    pub fn add_seen_nic(&mut self, mac: MacAddr) -> bool {
        let was_reported = self.reported_nics.remove(&mac);
        self.fingerprint.macs.insert(mac) || was_reported
    }

    /// Removes a NIC that another node has now.
    pub fn remove_nic(&mut self, mac: MacAddr) {
        self.reported_nics.remove(&mac);
        self.fingerprint.macs.remove(&mac);
    }

    /// Forgets NICs that the node only reported.
    pub fn forget_reported_nics(&mut self) {
        let own = self.mac;
        let reported = std::mem::take(&mut self.reported_nics);
        self.fingerprint.macs.retain(|mac| *mac == own || !reported.contains(mac));
    }

    /// Records the reported hardware and returns the changed fields. New NICs do not count as
    /// changes: they come and go with drivers and virtual functions.
    pub fn recognise(
        &mut self,
        facts: &Facts,
        own: impl IntoIterator<Item = MacAddr>,
    ) -> Option<String> {
        let print = &mut self.fingerprint;
        let serial = facts.system.serial.trim();
        let board = facts.system.board_serial.trim();
        // iPXE and Linux may spell a serial number differently; the script step compares iPXE's
        // spelling.
        if print.serial.is_empty() {
            serial.clone_into(&mut print.serial);
        }
        let other_board = agree(&print.board_serial, board) == Some(false);
        let changed =
            other_board.then(|| format!("board serial `{}`, now `{board}`", print.board_serial));
        if !board.is_empty() {
            board.clone_into(&mut print.board_serial);
        }
        for mac in own {
            if print.macs.len() < MAX_MACS && print.macs.insert(mac) {
                self.reported_nics.insert(mac);
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sighting(mac: u8, serial: &str) -> ObservedMachine {
        let hardware = Hardware {
            uuid: "01020304-0506-0708-090a-0b0c0d0e0f10".parse().ok(),
            serial: serial.to_owned(),
            ..Hardware::default()
        };
        ObservedMachine::from_hardware(&hardware, MacAddr([2, 0, 0, 0, 0, mac]), &DenyList::new())
            .expect("a UUID is there")
    }

    fn known(mac: u8, serial: &str) -> Node {
        let ObservedMachine { basis, fingerprint, mac, .. } = sighting(mac, serial);
        Node::discovered(basis, fingerprint, mac, Timestamp::from_millis(0))
    }

    #[test]
    fn same_machine_is_known_while_its_old_link_is_up() {
        let claim = IdentityConflict { link_is_live: true, boots_elsewhere: true };
        assert_eq!(identify(Some(&known(1, "A")), &sighting(1, "A"), claim), Identified::Known);
        assert_eq!(identify(None, &sighting(1, "A"), claim), Identified::New);
    }

    #[test]
    fn new_nic_of_an_offline_node_is_changed_hardware() {
        let changed =
            identify(Some(&known(1, "A")), &sighting(2, "A"), IdentityConflict::default());
        assert!(matches!(changed, Identified::HardwareChanged { .. }), "{changed:?}");
    }

    #[test]
    fn second_machine_is_a_collision_while_the_first_one_is_active() {
        let claims = [
            IdentityConflict { link_is_live: true, ..IdentityConflict::default() },
            IdentityConflict { boots_elsewhere: true, ..IdentityConflict::default() },
        ];
        for claim in claims {
            let other = identify(Some(&known(1, "A")), &sighting(2, "A"), claim);
            assert!(matches!(other, Identified::Collision { .. }), "{other:?}");
        }
    }

    #[test]
    fn machine_with_nothing_in_common_is_a_collision() {
        for serial in ["B", ""] {
            let other =
                identify(Some(&known(1, "A")), &sighting(2, serial), IdentityConflict::default());
            assert!(matches!(other, Identified::Collision { .. }), "{other:?}");
        }
        let without_serials =
            identify(Some(&known(1, "")), &sighting(2, ""), IdentityConflict::default());
        assert!(
            matches!(without_serials, Identified::Collision { .. }),
            "two empty serials do not agree"
        );
    }

    #[test]
    fn placeholder_serials_do_not_identify_a_machine() {
        let other = identify(
            Some(&known(1, "Default string")),
            &sighting(2, "Default string"),
            IdentityConflict::default(),
        );
        assert!(matches!(other, Identified::Collision { .. }), "{other:?}");
        let same = identify(
            Some(&known(1, "SN-1")),
            &sighting(1, "To be filled by O.E.M."),
            IdentityConflict::default(),
        );
        assert_eq!(same, Identified::Known, "its NIC agrees, and one serial is none");
    }

    #[test]
    fn board_serial_that_agrees_with_another_nic_is_hardware_changed() {
        let board = |mac: u8, serial: &str, board: &str| {
            let mut sighting = sighting(mac, serial);
            board.clone_into(&mut sighting.fingerprint.board_serial);
            sighting
        };
        let mut node = known(1, "");
        "B-1".clone_into(&mut node.fingerprint.board_serial);
        let id = node.id;
        let same = board(2, "", "b-1 ");
        let changed = identify(Some(&node), &same, IdentityConflict::default());
        assert!(matches!(changed, Identified::HardwareChanged { .. }), "{changed:?}");
        assert_eq!(same.node_id(), id, "no ID is derived from it");
        for other in [board(2, "", "B-2"), board(2, "", ""), board(2, "", "Default string")] {
            let other = identify(Some(&node), &other, IdentityConflict::default());
            assert!(matches!(other, Identified::Collision { .. }), "{other:?}");
        }
        let live = identify(
            Some(&node),
            &same,
            IdentityConflict { link_is_live: true, ..IdentityConflict::default() },
        );
        assert!(matches!(live, Identified::Collision { .. }), "two machines: {live:?}");
    }

    #[test]
    fn removed_node_counts_as_unknown() {
        let mut gone = known(1, "A");
        gone.phase = Phase::Removed;
        assert_eq!(
            identify(Some(&gone), &sighting(2, "B"), IdentityConflict::default()),
            Identified::New
        );
    }

    #[test]
    fn conflicting_machines_are_keyed_by_mac_and_bounded() {
        let at = Timestamp::from_millis;
        let conflicting = |mac: u8, now: i64| ConflictingMachine {
            fingerprint: sighting(mac, "B").fingerprint,
            mac: sighting(mac, "B").mac,
            address: None,
            since: at(now),
            last: at(now),
        };
        let mut node = known(1, "A");
        assert!(
            node.record_conflict(conflicting(2, 5)) && !node.record_conflict(conflicting(2, 7))
        );
        assert_eq!(
            (node.conflicting_machines[0].since, node.conflicting_machines[0].last),
            (at(5), at(7))
        );
        assert!(
            !node.is_conflict_update_due(conflicting(2, 0).mac, at(60_000))
                && node.is_conflict_update_due(conflicting(2, 0).mac, at(60_007))
        );
        for mac in 3..20 {
            assert!(node.record_conflict(conflicting(mac, i64::from(mac) * 100)));
        }
        assert_eq!(node.conflicting_machines.len(), MAX_CONFLICTING_MACHINES);
        assert!(
            node.remove_conflict(conflicting(19, 0).mac)
                && !node.remove_conflict(conflicting(2, 0).mac),
            "the oldest went first"
        );
    }

    #[test]
    fn macs_of_one_machine_are_bounded() {
        let mut node = known(1, "A");
        let nics = (0..2000u16).map(|n| MacAddr([2, 9, 0, 0, (n >> 8) as u8, n as u8]));
        node.recognise(&Facts::default(), nics);
        assert_eq!(node.fingerprint.macs.len(), MAX_MACS);
        assert!(node.fingerprint.macs.contains(&node.mac));
    }

    #[test]
    fn changed_board_serial_is_returned_once() {
        let mut node = known(1, "A");
        let facts = |serial: &str, board: &str| {
            let mut facts = Facts::default();
            (facts.system.serial, facts.system.board_serial) =
                (serial.to_owned(), board.to_owned());
            facts
        };
        assert_eq!(node.recognise(&facts("A", "B-1"), []), None, "first report");
        assert_eq!(
            node.recognise(&facts("A", "B-2"), []).as_deref(),
            Some("board serial `B-1`, now `B-2`")
        );
        assert_eq!(node.recognise(&facts("A", "B-2"), []), None);
        assert_eq!(
            node.recognise(&facts("a ", ""), []),
            None,
            "a missing board serial is no change"
        );
        assert_eq!(
            (node.fingerprint.serial.as_str(), node.fingerprint.board_serial.as_str()),
            ("A", "B-2")
        );
    }
}
