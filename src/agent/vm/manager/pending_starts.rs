//! Start orders that wait for a volume, a disk write or the release of their VM. Stored, so that a restarted agent
//! of the same boot resumes fetches and keeps the files. The restarted agent starts a VM only when
//! the central node repeats the order.

use crate::{
    files,
    system::{self, Tree},
    vm::{host::config::HostConfig, vm_paths},
};
use meshd_proto::vm::VmSpec;
use meshd_types::SystemUuid;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::DirBuilder,
    io::{self, ErrorKind},
    os::unix::fs::DirBuilderExt as _,
    path::PathBuf,
    time::Duration,
};

/// Name of the file in the folder of all VMs.
const FILE: &str = "pending-starts.json";

/// A start order that waits, see [`PendingStarts`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingStart {
    pub spec: Box<VmSpec>,
    pub start: u32,
    /// Grace period for the guest if the VM is restarted.
    pub grace: Duration,
    /// The order arrived at this agent, not at an earlier one.
    #[serde(skip)]
    pub ordered: bool,
}

/// Start orders that wait for a volume, a disk write or the release of their VM. These VMs are
/// reported as starting.
#[derive(Debug)]
pub struct PendingStarts {
    starts: BTreeMap<SystemUuid, PendingStart>,
    file: PathBuf,
    boot: String,
}

#[derive(Serialize, Deserialize)]
struct PendingStartsFile {
    boot: String,
    starts: Vec<PendingStart>,
}

impl PendingStarts {
    /// Reads the orders that an earlier agent of the same boot left.
    pub fn open(config: &HostConfig) -> Self {
        let file = config.vms_dir.join(FILE);
        let boot = system::kernel_boot_id(&Tree::new(&config.root));
        let stored = files::read(&file)
            .ok()
            .and_then(|text| serde_json::from_str::<PendingStartsFile>(&text).ok());
        let starts = stored
            .filter(|stored| stored.boot == boot)
            .map(|stored| stored.starts)
            .unwrap_or_default();
        PendingStarts {
            starts: starts.into_iter().map(|pending| (pending.spec.uuid, pending)).collect(),
            file,
            boot,
        }
    }

    pub fn get(&self, uuid: SystemUuid) -> Option<&PendingStart> {
        self.starts.get(&uuid)
    }

    pub fn all(&self) -> impl Iterator<Item = &PendingStart> {
        self.starts.values()
    }

    pub fn any(&self) -> bool {
        !self.starts.is_empty()
    }

    pub fn insert(&mut self, pending: PendingStart) {
        let previous = self.starts.insert(pending.spec.uuid, pending.clone());
        if previous
            .is_none_or(|previous| PendingStart { ordered: pending.ordered, ..previous } != pending)
        {
            self.store();
        }
    }

    pub fn remove(&mut self, uuid: SystemUuid) -> Option<PendingStart> {
        let removed = self.starts.remove(&uuid);
        if removed.is_some() {
            self.store();
        }
        removed
    }

    fn store(&self) {
        if let Err(error) = self.write() {
            tracing::error!(%error, file = %self.file.display(), "cannot store pending starts");
        }
    }

    fn write(&self) -> io::Result<()> {
        if self.starts.is_empty() {
            return vm_paths::remove_file(&self.file);
        }
        let folder = self.file.parent().ok_or(ErrorKind::InvalidInput)?;
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let stored = PendingStartsFile {
            boot: self.boot.clone(),
            starts: self.starts.values().cloned().collect(),
        };
        files::replace(&self.file, &serde_json::to_string(&stored).map_err(io::Error::other)?)
            .map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fake::FakeMachine, vm::fixtures};
    use std::fs;

    #[test]
    fn waiting_start_survives_an_agent_restart_but_not_a_reboot() {
        let fake = FakeMachine::new("", &[]);
        let config = HostConfig::of_root(&fake.tree.path("/"));
        let boot = |id: &str| fake.file("proc/sys/kernel/random/boot_id", id);
        boot("one");
        let spec = Box::new(fixtures::spec(serde_json::json!({})));
        let pending = PendingStart { spec, start: 3, grace: Duration::from_secs(7), ordered: true };
        let uuid = pending.spec.uuid;
        let mut starts = PendingStarts::open(&config);
        starts.insert(pending.clone());
        let restarted = PendingStarts::open(&config);
        assert_eq!(restarted.get(uuid), Some(&PendingStart { ordered: false, ..pending }));
        boot("two");
        assert!(
            !PendingStarts::open(&config).any(),
            "the VM may run on another node after a reboot"
        );
        starts.remove(uuid);
        assert_eq!(fs::read_dir(config.vms_dir).expect("made").count(), 0, "the file is removed");
    }
}
