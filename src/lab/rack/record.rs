//! `rack.json`: the record of a rack's processes and networks.

use crate::{
    Accel, Extra, Identity, LabError, ProcessId, Shape, machine::Firmware,
    qemu::vfio_trial_hardware::OTHER_NICS, site::Setting,
};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const FILE: &str = "rack.json";

/// Persistent state of a rack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Boot ID of the host, for which the process IDs are valid.
    pub host_boot: String,
    /// The meshd under test.
    pub program: PathBuf,
    /// The user's site file.
    pub user_site: PathBuf,
    /// Overridden keys of the site file, in addition to the lab's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<Setting>,
    pub accel: Accel,
    pub shape: Shape,
    /// The nodes' serial ports have console sockets.
    #[serde(default)]
    pub console: bool,
    /// Process of meshd while it runs.
    pub central: Option<ProcessId>,
    /// Nodes, ordered by position.
    pub nodes: Vec<NodeRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Position, counted from 1.
    pub position: u8,
    pub firmware: Firmware,
    #[serde(default)]
    pub extras: Vec<Extra>,
    /// Identity, if it differs from that of the position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// Process of QEMU, while the node is powered.
    pub process: Option<ProcessId>,
}

impl NodeRecord {
    /// Returns `node1`, `node2`...
    pub fn name(&self) -> String {
        Identity::name_at(self.position)
    }

    /// Returns the name of the tap on the bridge.
    pub fn tap(&self) -> String {
        format!("tap{}", self.position)
    }

    /// Returns the names of all its taps.
    pub fn taps(&self) -> Vec<String> {
        let has_four = self.extras.contains(&Extra::FourNics);
        let others = OTHER_NICS.iter().filter(|_| has_four);
        let others = others.map(|(suffix, _)| format!("{}{suffix}", self.tap()));
        std::iter::once(self.tap()).chain(others).collect()
    }

    pub fn identity(&self) -> Identity {
        self.identity.clone().unwrap_or_else(|| Identity::at(self.position))
    }

    pub fn is_on(&self) -> bool {
        self.process.is_some_and(ProcessId::is_alive)
    }
}

impl Record {
    /// Reads the record in a folder; `None` if there is none.
    pub fn load(dir: &Path) -> Result<Option<Self>, LabError> {
        let path = dir.join(FILE);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(LabError::file("read", &path))?,
        };
        serde_json::from_slice(&text).map(Some).map_err(|source| LabError::Record { path, source })
    }

    /// Replaces the record atomically.
    pub fn save(&self, dir: &Path) -> Result<(), LabError> {
        let path = dir.join(FILE);
        let temporary = dir.join("rack.json.new");
        let text = serde_json::to_vec_pretty(self).expect("a record has text keys only");
        fs::write(&temporary, text).map_err(LabError::file("write", &temporary))?;
        fs::rename(&temporary, &path).map_err(LabError::file("write", &path))
    }

    pub fn remove(dir: &Path) -> Result<(), LabError> {
        let path = dir.join(FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(LabError::file("remove", path)),
        }
    }

    /// Returns all recorded processes with their names.
    pub fn processes(&self) -> Vec<(String, ProcessId)> {
        let nodes =
            self.nodes.iter().filter_map(|node| node.process.map(|process| (node.name(), process)));
        nodes.chain(self.central.map(|process| ("meshd".to_owned(), process))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let process = Some(ProcessId { pid: 7, started: 9 });
        let node = NodeRecord {
            position: 1,
            firmware: Firmware::Uefi,
            extras: vec![Extra::Gpu],
            identity: None,
            process,
        };
        let host_boot = "b".to_owned();
        let program = PathBuf::from("/meshd");
        let accel = Accel::Tcg;
        let shape = Shape::default();
        let nodes = vec![node];
        let user_site = PathBuf::from("/site.toml");
        let settings = vec![("http.port".into(), "8081".into())];
        Record {
            host_boot,
            program,
            user_site,
            settings,
            accel,
            shape,
            console: false,
            central: process,
            nodes,
        }
    }

    #[test]
    fn rack_record_round_trips_and_lists_all_processes() {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(Record::load(dir.path()).expect("no fault"), None);
        record().save(dir.path()).expect("written");
        assert_eq!(Record::load(dir.path()).expect("readable"), Some(record()));
        assert_eq!(record().processes().len(), 2);
        Record::remove(dir.path()).expect("removed");
        Record::remove(dir.path()).expect("removing nothing is no fault");
    }

    #[test]
    fn damaged_rack_record_is_an_error() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join(FILE), "{").expect("written");
        assert!(matches!(Record::load(dir.path()), Err(LabError::Record { .. })));
    }
}
