//! NUMA locality of a VM: whether its CPUs are near its units. Pure.

use super::record::Vm;
use serde::{Deserialize, Serialize};

/// NUMA locality of units and CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Locality {
    /// The VM is bound to a NUMA node because its units are there, for as long as it has these units.
    pub near: bool,
    /// Units and CPUs are on several NUMA nodes.
    pub mismatch: bool,
}

impl Locality {
    pub(super) fn is_plain(&self) -> bool {
        *self == Locality::default()
    }
}

impl Vm {
    /// Binds the VM to the NUMA node `near` of its units, or records a mismatch.
    pub fn bind(&mut self, near: Option<u32>, mismatch: bool) {
        if near.is_some() || self.locality.near {
            self.request.spec.numa_node = near;
        }
        self.locality = Locality { near: near.is_some(), mismatch };
    }
}
