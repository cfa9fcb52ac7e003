//! Finds the disk of a volume and checks its owner. Pure.

use super::{Planner, holds};
use crate::vm::host::resources::HostDisk;
use meshd_proto::vm::{DiskIdentity, RawDisk, SlotDisk, VmRefusalReason, VmSpec};
use meshd_types::PciAddress;
use std::path::PathBuf;

impl Planner<'_> {
    /// The device of the one disk of that identity.
    pub(super) fn disk(&self, disk: &RawDisk) -> Result<PathBuf, (VmRefusalReason, String)> {
        let Some(identity) = disk.identity().map(DiskIdentity::as_str) else {
            return Err((VmRefusalReason::DiskMissing, "which disk its slot has was not said".to_owned()));
        };
        let is = |text: &Option<String>| text.as_deref() == Some(identity);
        let found: Vec<&HostDisk> = self.host.disks.iter().filter(|disk| is(&disk.wwid) || is(&disk.serial)).collect();
        let [disk] = found.as_slice() else {
            let count = if found.is_empty() { "no disk is".to_owned() } else { format!("{} disks are", found.len()) };
            return Err((VmRefusalReason::DiskMissing, format!("{count} called `{identity}`")));
        };
        let aliases: Vec<&str> = [&disk.wwid, &disk.serial].into_iter().flatten().map(String::as_str).collect();
        let has = |other: &&&VmSpec| other.disks().any(|disk| aliases.contains(&disk.as_str()));
        if let Some(other) = self.others.iter().find(has) {
            return Err((VmRefusalReason::DiskInUse, format!("`{identity}` belongs to {}", other.name)));
        }
        let foreign = |slot: &&SlotDisk| aliases.contains(&slot.disk.as_str()) && !self.has_unit(&slot.unit);
        if let Some(slot) = self.host.slots.iter().find(foreign) {
            return Err((VmRefusalReason::DiskTaken, format!("`{identity}` belongs to slot {}", slot.unit)));
        }
        if let Some(why) = &disk.in_use {
            return Err((VmRefusalReason::DiskInUse, format!("`{identity}`: {why}")));
        }
        Ok(disk.device.clone())
    }

    /// True if it is given the unit of this function.
    fn has_unit(&self, function: &PciAddress) -> bool {
        let unit = self.host.units.iter().find(|unit| holds(unit, function));
        self.spec.units.iter().any(|own| own == function || unit.is_some_and(|unit| holds(unit, own)))
    }
}
