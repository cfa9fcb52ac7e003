//! Finds the disk of a volume and checks its owner. Pure.

use super::{Planner, has_function};
use crate::disks::wipe;
use meshd_proto::vm::{RawDisk, SlotDisk, VmRefusalReason, VmSpec};
use meshd_types::PciAddress;
use std::path::PathBuf;

impl Planner<'_> {
    pub(super) fn disk(&self, disk: &RawDisk) -> Result<PathBuf, (VmRefusalReason, String)> {
        let Some(identity) = disk.identity() else {
            return Err((
                VmRefusalReason::DiskMissing,
                "the order does not name the disk of the slot".to_owned(),
            ));
        };
        let missing = || format!("no disk has the identity {identity}");
        let disk = wipe::find(&self.host.disks, identity)
            .and_then(|found| found.ok_or_else(missing))
            .map_err(|reason| (VmRefusalReason::DiskMissing, reason))?;
        let aliases: Vec<&str> = disk.identities().collect();
        let has_disk =
            |other: &&&VmSpec| other.disks().any(|disk| aliases.contains(&disk.as_str()));
        if let Some(owner) = self.others.iter().find(has_disk) {
            return Err((
                VmRefusalReason::DiskInUse,
                format!("`{identity}` belongs to {}", owner.name),
            ));
        }
        let is_foreign =
            |slot: &&SlotDisk| aliases.contains(&slot.disk.as_str()) && !self.has_unit(&slot.unit);
        if let Some(slot) = self.host.slots.iter().find(is_foreign) {
            return Err((
                VmRefusalReason::DiskTaken,
                format!("`{identity}` belongs to slot {}", slot.unit),
            ));
        }
        if let Some(reason) = &disk.blocked {
            return Err((VmRefusalReason::DiskInUse, format!("`{identity}`: {reason}")));
        }
        Ok(self.host.dev.join(&disk.name))
    }

    /// Returns whether the VM gets the unit of this function.
    fn has_unit(&self, function: &PciAddress) -> bool {
        let unit = self.host.units.iter().find(|unit| has_function(unit, function));
        self.spec
            .units
            .iter()
            .any(|own| own == function || unit.is_some_and(|unit| has_function(unit, own)))
    }
}
