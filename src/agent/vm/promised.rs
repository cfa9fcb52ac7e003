//! What of a node is promised to its machines.

use super::{host, plan};
use crate::{
    id::SystemUuid,
    wire::vm::{VmRefusal, VmSpec},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// The machines of a node that are live or shall be, whose memory, disks and units are not free.
#[derive(Clone, Debug, Default)]
pub struct Promised(Arc<Mutex<BTreeMap<SystemUuid, VmSpec>>>);

impl Promised {
    fn with<T>(&self, look: impl FnOnce(&mut BTreeMap<SystemUuid, VmSpec>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a machine in if the node can run it beside the others.
    ///
    /// # Errors
    /// Everything that stands against it.
    pub fn take(&self, spec: &VmSpec, host: &host::Host) -> Result<plan::Plan, Vec<VmRefusal>> {
        self.with(|all| {
            let others: Vec<&VmSpec> = all.values().filter(|other| other.uuid != spec.uuid).collect();
            let plan = plan::plan(spec, host, &others)?;
            all.insert(spec.uuid, spec.clone());
            Ok(plan)
        })
    }

    /// Takes a machine in that runs already.
    pub fn insert(&self, spec: &VmSpec) {
        self.with(|all| all.insert(spec.uuid, spec.clone()));
    }

    /// It needs nothing any more.
    pub fn remove(&self, uuid: SystemUuid) {
        self.with(|all| all.remove(&uuid));
    }
}
