//! NUMA locality of a VM: whether its CPUs are near its units. Pure.

use super::record::Vm;
use serde::{Deserialize, Serialize};

/// How near to each other a machine's units and processors are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Locality {
    /// It is bound to a NUMA node because its units are there, and only as long as it has them.
    pub near: bool,
    /// They are on several NUMA nodes.
    pub mismatch: bool,
}

impl Locality {
    pub(super) fn is_plain(&self) -> bool {
        *self == Locality::default()
    }
}

impl Vm {
    /// On its node it is bound to the NUMA node `near`, because its units are there; or they are on several.
    pub fn bind(&mut self, near: Option<u32>, mismatch: bool) {
        if near.is_some() || self.locality.near {
            self.ask.spec.numa_node = near;
        }
        self.locality = Locality { near: near.is_some(), mismatch };
    }
}
