//! NUMA locality of a VM: whether its CPUs are near its units. Pure.

use serde::{Deserialize, Serialize};

/// NUMA locality of units and CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Locality {
    /// The VM is bound to a NUMA node because its units are there, for as long as it has these
    /// units.
    pub near: bool,
    /// Units and CPUs are on several NUMA nodes.
    pub mismatch: bool,
}

impl Locality {
    pub(super) fn is_plain(&self) -> bool {
        *self == Locality::default()
    }
}
