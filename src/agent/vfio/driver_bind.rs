//! Binds units to vfio-pci by `driver_override`, which applies to one PCI function. A device ID
//! would also match other devices.

use super::{KernelOps, RECORD, group_probe::FOLDER, survey, unit_state::DRIVER};
use crate::system::Tree;
use meshd_proto::{PciFacts, UnitFacts, UnitState};
use meshd_types::VfioSelector;
use std::{fmt, fs, io};

/// The result of `vfio bind` for one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindResult {
    /// The unit afterwards.
    pub unit: UnitFacts,
    /// Number of functions that this run bound.
    pub newly_bound: usize,
    /// Errors of the kernel.
    pub errors: Vec<String>,
}

impl fmt::Display for BindResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.unit.name(), self.unit.state.as_str())?;
        if self.newly_bound > 0 {
            write!(f, ", {} function(s) bound now", self.newly_bound)?;
        }
        let reasons =
            self.errors.iter().chain([&self.unit.reason]).filter(|reason| !reason.is_empty());
        reasons.into_iter().try_for_each(|reason| write!(f, "; {reason}"))
    }
}

/// Binds the functions of every unbound unit to vfio-pci. Idempotent.
///
/// # Errors
/// The record cannot be written. Other errors are in the results.
pub fn bind(
    tree: &Tree,
    selectors: &[VfioSelector],
    kernel: &dyn KernelOps,
) -> io::Result<Vec<BindResult>> {
    let before = survey(tree, selectors, kernel);
    record(tree, &before)?;
    let mut results = Vec::new();
    for unit in before {
        let mut newly_bound = 0;
        let mut errors = Vec::new();
        if unit.state == UnitState::Unbound && unit.group.is_some() {
            for member in
                unit.members.iter().filter(|member| member.driver.as_deref() != Some(DRIVER))
            {
                match bind_function(tree, member, kernel) {
                    Ok(()) => newly_bound += 1,
                    Err(error) => errors.push(error),
                }
            }
        }
        results.push(BindResult { unit, newly_bound, errors });
    }
    let after = survey(tree, selectors, kernel);
    for result in &mut results {
        let is_same = |unit: &&UnitFacts| {
            unit.group == result.unit.group && unit.selected == result.unit.selected
        };
        if let Some(unit) = after.iter().find(is_same) {
            result.unit.clone_from(unit);
        }
    }
    Ok(results)
}

fn bind_function(tree: &Tree, member: &PciFacts, kernel: &dyn KernelOps) -> Result<(), String> {
    let address = &member.address;
    let folder = format!("/sys/bus/pci/devices/{address}");
    let write = |path: &str, text: &str| {
        kernel.write(path, text).map_err(|error| format!("cannot write {text} to {path}: {error}"))
    };
    // Set the override first, so that no other driver binds the function.
    write(&format!("{folder}/driver_override"), DRIVER)?;
    if member.driver.is_some() {
        write(&format!("{folder}/driver/unbind"), address)?;
    }
    write("/sys/bus/pci/drivers_probe", address)?;
    match tree.link(&format!("{folder}/driver")) {
        Some(driver) if driver == DRIVER => Ok(()),
        _ => Err(format!("cannot bind {address} to {DRIVER}; load the module vfio-pci")),
    }
}

/// Records the units until the next boot, to detect functions that vanish.
fn record(tree: &Tree, units: &[UnitFacts]) -> io::Result<()> {
    let units: Vec<&UnitFacts> = units.iter().filter(|unit| !unit.members.is_empty()).collect();
    if units.iter().any(|unit| unit.state == UnitState::Missing) && tree.has(RECORD) {
        return Ok(());
    }
    let text = serde_json::to_string(&units).map_err(io::Error::other)?;
    fs::create_dir_all(tree.path(FOLDER))?;
    fs::write(tree.path(RECORD), text)
}
