//! VMs that wait for a volume, a disk write or their own release. Stored, so that a restarted agent of the same boot resumes fetches and
//! keeps the files. It starts none before the order is repeated.

use crate::{
    files,
    system::{self, Tree},
    vm::host::config::HostConfig,
};
use meshd_proto::vm::VmSpec;
use meshd_types::SystemUuid;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder},
    io::{self, ErrorKind},
    os::unix::fs::DirBuilderExt as _,
    path::PathBuf,
    time::Duration,
};

/// Name of the file in the folder of all VMs.
const FILE: &str = "waiting.json";

/// A start order that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingStart {
    pub spec: Box<VmSpec>,
    /// Number of the start order.
    pub start: u32,
    /// Grace period for the guest if the VM is restarted.
    pub grace: Duration,
    /// The central node gave the order to this agent, not to an earlier one.
    #[serde(skip)]
    pub ordered: bool,
}

/// All waiting start orders.
#[derive(Debug)]
pub struct WaitingVms {
    runs: BTreeMap<SystemUuid, PendingStart>,
    file: PathBuf,
    boot: String,
}

#[derive(Serialize, Deserialize)]
struct WaitingFile {
    /// Boot ID of the kernel.
    boot: String,
    runs: Vec<PendingStart>,
}

impl WaitingVms {
    /// Reads the orders that an earlier agent of the same boot left.
    pub fn open(config: &HostConfig) -> Self {
        let (file, boot) = (config.machines.join(FILE), system::kernel_boot_id(&Tree::new(&config.root)));
        let stored = files::read(&file).ok().and_then(|text| serde_json::from_str::<WaitingFile>(&text).ok());
        let runs = stored.filter(|stored| stored.boot == boot).map(|stored| stored.runs).unwrap_or_default();
        WaitingVms { runs: runs.into_iter().map(|run| (run.spec.uuid, run)).collect(), file, boot }
    }

    /// Returns the order of a VM.
    pub fn get(&self, uuid: SystemUuid) -> Option<&PendingStart> {
        self.runs.get(&uuid)
    }

    /// Returns all waiting VMs.
    pub fn all(&self) -> impl Iterator<Item = &PendingStart> {
        self.runs.values()
    }

    /// Returns true if a VM waits.
    pub fn any(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Adds or replaces an order.
    pub fn insert(&mut self, run: PendingStart) {
        let uuid = run.spec.uuid;
        if self
            .runs
            .insert(uuid, run.clone())
            .is_none_or(|before| PendingStart { ordered: run.ordered, ..before } != run)
        {
            self.keep();
        }
    }

    /// Removes an order.
    pub fn remove(&mut self, uuid: SystemUuid) {
        if self.runs.remove(&uuid).is_some() {
            self.keep();
        }
    }

    fn keep(&self) {
        if let Err(error) = self.write() {
            tracing::error!(%error, file = %self.file.display(), "a later agent would not know what waits");
        }
    }

    fn write(&self) -> io::Result<()> {
        if self.runs.is_empty() {
            return match fs::remove_file(&self.file) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let folder = self.file.parent().ok_or(ErrorKind::InvalidInput)?;
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let stored = WaitingFile { boot: self.boot.clone(), runs: self.runs.values().cloned().collect() };
        files::replace(&self.file, &serde_json::to_string(&stored).map_err(io::Error::other)?).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_known_to_a_later_agent_of_the_same_boot_and_not_begun_by_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let (root, machines) = (dir.path().to_owned(), dir.path().join("vms"));
        let boot = |id: &str| {
            let file = root.join("proc/sys/kernel/random/boot_id");
            fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            fs::write(file, id).expect("written");
        };
        boot("one");
        let (images, vfio, data_disks) = (machines.join("volumes"), Vec::new(), Vec::new());
        let models = crate::vm::CpuModels::default();
        let checks = crate::vm::CheckRunner::new(Vec::new);
        let config =
            HostConfig { root: root.clone(), machines: machines.clone(), images, vfio, data_disks, models, checks };
        let spec = r#"{"name": "a", "uuid": "11223344-5566-7788-99aa-bbccddeeff00", "vcpus": 1, "memory": "1G"}"#;
        let spec: Box<VmSpec> = serde_json::from_str(spec).expect("a specification");
        let run = PendingStart { spec, start: 3, grace: Duration::from_secs(7), ordered: true };
        let uuid = run.spec.uuid;
        let mut waiting = WaitingVms::open(&config);
        waiting.insert(run.clone());
        let later = WaitingVms::open(&config);
        assert_eq!(later.get(uuid), Some(&PendingStart { ordered: false, ..run }));
        boot("two");
        assert!(!WaitingVms::open(&config).any(), "a node that booted anew may have lost it to another");
        waiting.remove(uuid);
        assert_eq!(fs::read_dir(machines).expect("made").count(), 0, "and nothing is left");
    }
}
