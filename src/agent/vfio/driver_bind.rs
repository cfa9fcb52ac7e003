//! Binds units to vfio-pci by `driver_override`, which names a PCI function and not an ID that another card may share.

use super::{KernelOps, RECORD, group_probe::FOLDER, survey, unit_state::DRIVER};
use crate::system::Tree;
use meshd_proto::{PciFacts, UnitFacts, UnitState};
use meshd_types::VfioSelector;
use std::{fmt, fs, io};

/// The result of `vfio bind` for one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The unit afterwards.
    pub unit: UnitFacts,
    /// Number of functions bound now.
    pub fresh: usize,
    /// Errors of the kernel.
    pub faults: Vec<String>,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.unit.name(), self.unit.state.as_str())?;
        if self.fresh > 0 {
            write!(f, ", {} function(s) bound now", self.fresh)?;
        }
        for reason in
            self.faults.iter().map(String::as_str).chain([self.unit.reason.as_str()]).filter(|r| !r.is_empty())
        {
            write!(f, "; {reason}")?;
        }
        Ok(())
    }
}

/// Binds the functions of every unit that is not in use to vfio-pci. Leaves other units unchanged. Idempotent.
///
/// # Errors
/// The record cannot be written. Other errors are in the results.
pub fn bind(tree: &Tree, selectors: &[VfioSelector], system: &dyn KernelOps) -> io::Result<Vec<Bound>> {
    let before = survey(tree, selectors, system);
    record(tree, &before)?;
    let mut done = Vec::new();
    for unit in before {
        let (mut fresh, mut faults) = (0, Vec::new());
        if unit.state == UnitState::Unbound && unit.group.is_some() {
            for member in unit.members.iter().filter(|member| member.driver.as_deref() != Some(DRIVER)) {
                match give(tree, member, system) {
                    Ok(()) => fresh += 1,
                    Err(fault) => faults.push(fault),
                }
            }
        }
        done.push(Bound { unit, fresh, faults });
    }
    let after = survey(tree, selectors, system);
    for bound in &mut done {
        let same = |unit: &&UnitFacts| unit.group == bound.unit.group && unit.selected == bound.unit.selected;
        if let Some(now) = after.iter().find(same) {
            bound.unit.clone_from(now);
        }
    }
    Ok(done)
}

fn give(tree: &Tree, member: &PciFacts, system: &dyn KernelOps) -> Result<(), String> {
    let address = &member.address;
    let folder = format!("/sys/bus/pci/devices/{address}");
    let write = |path: &str, text: &str| {
        system.write(path, text).map_err(|error| format!("cannot write {text} to {path}: {error}"))
    };
    // Set the override first, so that no other driver binds the function.
    write(&format!("{folder}/driver_override"), DRIVER)?;
    if member.driver.is_some() {
        write(&format!("{folder}/driver/unbind"), address)?;
    }
    write("/sys/bus/pci/drivers_probe", address)?;
    match tree.link(&format!("{folder}/driver")) {
        Some(driver) if driver == DRIVER => Ok(()),
        _ => Err(format!("{DRIVER} does not take {address}; is the module vfio-pci loaded?")),
    }
}

/// Records the units until the next boot, so that functions that vanish are noticed.
fn record(tree: &Tree, units: &[UnitFacts]) -> io::Result<()> {
    let kept: Vec<&UnitFacts> = units.iter().filter(|unit| !unit.members.is_empty()).collect();
    if kept.iter().any(|unit| unit.state == UnitState::Missing) && tree.has(RECORD) {
        return Ok(());
    }
    let text = serde_json::to_string(&kept).map_err(io::Error::other)?;
    fs::create_dir_all(tree.path(FOLDER))?;
    fs::write(tree.path(RECORD), text)
}
