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

/// The name of the file, in the folder of all machines.
const FILE: &str = "waiting.json";

/// A machine that shall run, by which number, and how long a restart leaves its guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingStart {
    /// Specification.
    pub spec: Box<VmSpec>,
    /// Number of the start order.
    pub start: u32,
    /// How long a restart leaves its guest.
    pub grace: Duration,
    /// The central node has said so to this agent.
    #[serde(skip)]
    pub ordered: bool,
}

/// Those that wait.
#[derive(Debug)]
pub struct WaitingVms {
    runs: BTreeMap<SystemUuid, PendingStart>,
    file: PathBuf,
    boot: String,
}

#[derive(Serialize, Deserialize)]
struct WaitingFile {
    /// The kernel's name of the boot.
    boot: String,
    runs: Vec<PendingStart>,
}

impl WaitingVms {
    /// Those that an earlier agent of this boot left; of an earlier boot none.
    pub fn open(places: &HostConfig) -> Self {
        let (file, boot) = (places.machines.join(FILE), system::kernel_boot_id(&Tree::new(&places.root)));
        let stored = files::read(&file).ok().and_then(|text| serde_json::from_str::<WaitingFile>(&text).ok());
        let runs = stored.filter(|stored| stored.boot == boot).map(|stored| stored.runs).unwrap_or_default();
        WaitingVms { runs: runs.into_iter().map(|run| (run.spec.uuid, run)).collect(), file, boot }
    }

    /// One of them.
    pub fn get(&self, uuid: SystemUuid) -> Option<&PendingStart> {
        self.runs.get(&uuid)
    }

    /// Returns all waiting VMs.
    pub fn all(&self) -> impl Iterator<Item = &PendingStart> {
        self.runs.values()
    }

    /// True while there is one.
    pub fn any(&self) -> bool {
        !self.runs.is_empty()
    }

    /// It waits from now on.
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

    /// It waits no more.
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
        let places =
            HostConfig { root: root.clone(), machines: machines.clone(), images, vfio, data_disks, models, checks };
        let spec = r#"{"name": "a", "uuid": "11223344-5566-7788-99aa-bbccddeeff00", "vcpus": 1, "memory": "1G"}"#;
        let spec: Box<VmSpec> = serde_json::from_str(spec).expect("a specification");
        let run = PendingStart { spec, start: 3, grace: Duration::from_secs(7), ordered: true };
        let uuid = run.spec.uuid;
        let mut waiting = WaitingVms::open(&places);
        waiting.insert(run.clone());
        let later = WaitingVms::open(&places);
        assert_eq!(later.get(uuid), Some(&PendingStart { ordered: false, ..run }));
        boot("two");
        assert!(!WaitingVms::open(&places).any(), "a node that booted anew may have lost it to another");
        waiting.remove(uuid);
        assert_eq!(fs::read_dir(machines).expect("made").count(), 0, "and nothing is left");
    }
}
