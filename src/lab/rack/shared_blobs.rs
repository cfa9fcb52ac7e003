//! Racks that use a folder of blobs, in `blobs_dir/racks`. Sites that share the folder keep what
//! each other lists as in use. A rack that was killed removes its lists no more; the next rack does.

use super::{lock, record::Record};
use crate::{LabError, Namespace, ProcessId, host::process::host_boot_id};
use meshd_builder::ListOwner;
use meshd_config::Site;
use meshd_types::Digest;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const FOLDER: &str = "racks";

/// A rack that uses the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RackEntry {
    /// Folder of the rack.
    dir: PathBuf,
    /// ID of this machine; empty if it has none.
    machine: String,
    host_boot: String,
    /// Owner of the lists; `None` until the site has an ID.
    owner: Option<ListOwner>,
}

/// Returns the entry of the rack in a folder.
fn entry_file(blobs_dir: &Path, dir: &Path) -> PathBuf {
    let digest = Digest::of(dir.as_os_str().as_encoded_bytes());
    blobs_dir.join(FOLDER).join(format!("{}.json", digest.short()))
}

fn machine_id() -> String {
    fs::read_to_string("/etc/machine-id").unwrap_or_default().trim().to_owned()
}

/// Records that a rack uses its folder of blobs. Returns whether its site has an ID by now.
pub(super) fn register(dir: &Path, site: &Site) -> Result<bool, LabError> {
    let owner = ListOwner::read(&site.state_dir, &site.name).ok();
    let has_id = owner.is_some();
    let machine = machine_id();
    let host_boot = host_boot_id();
    let entry = RackEntry { dir: dir.to_owned(), machine, host_boot, owner };
    let path = entry_file(&site.blobs_dir, dir);
    let temporary = path.with_extension("new");
    let folder = site.blobs_dir.join(FOLDER);
    fs::create_dir_all(&folder).map_err(LabError::file("make", folder))?;
    let text = serde_json::to_vec(&entry).expect("an entry has text keys only");
    fs::write(&temporary, text).map_err(LabError::file("write", &temporary))?;
    fs::rename(&temporary, &path).map_err(LabError::file("write", path))?;
    Ok(has_id)
}

/// Removes the lists of the rack in a folder and its entry. Only the state folder has the ID of the
/// lists.
pub(super) fn withdraw(dir: &Path, site: &Site) -> Result<(), LabError> {
    let failed = || LabError::file("remove the rack's lists below", &site.blobs_dir);
    // Without an ID, the rack did not serve.
    if let Ok(owner) = ListOwner::read(&site.state_dir, &site.name) {
        owner.withdraw(&site.blobs_dir).map_err(failed())?;
    }
    remove(&entry_file(&site.blobs_dir, dir)).map_err(failed())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes the lists of racks of this machine that no longer live. `ip` is the program of iproute2.
pub(super) fn withdraw_dead_racks(blobs_dir: &Path, ip: &Path) -> Result<(), LabError> {
    let failed = || LabError::file("remove lists of a dead rack below", blobs_dir);
    for file in fs::read_dir(blobs_dir.join(FOLDER)).into_iter().flatten().flatten() {
        let path = file.path();
        // Another rack may remove its entry now.
        let Ok(text) = fs::read(&path) else { continue };
        let Ok(entry) = serde_json::from_slice::<RackEntry>(&text) else { continue };
        // The name tells an entry from the temporary file of one.
        if path != entry_file(blobs_dir, &entry.dir) || !entry.is_of_this_machine() {
            continue;
        }
        // Without the lock first: to hold it would refuse a command of a rack that lives.
        if entry.lives(ip) {
            continue;
        }
        let held = entry.dir.exists().then(|| lock(&entry.dir)).transpose();
        let Ok(_lock) = held else { continue };
        if entry.lives(ip) {
            continue;
        }
        let state = entry.dir.join("state");
        let present = ListOwner::read(&state, "").ok();
        for owner in entry.owner.iter().chain(&present) {
            owner.withdraw(blobs_dir).map_err(failed())?;
        }
        remove(&path).map_err(failed())?;
    }
    Ok(())
}

impl RackEntry {
    /// Returns whether this machine can tell if the rack lives.
    fn is_of_this_machine(&self) -> bool {
        // Containers of one machine have its boot ID, and see neither the folders nor the processes
        // of each other.
        self.machine == machine_id()
            && (!self.machine.is_empty() || self.host_boot == host_boot_id())
    }

    /// Returns whether a process of the rack runs. The answer is final if the caller holds the lock
    /// of its folder.
    fn lives(&self, ip: &Path) -> bool {
        let host_boot = host_boot_id();
        let record = Record::load(&self.dir).ok().flatten();
        let recorded = record.filter(|record| record.host_boot == host_boot);
        let recorded = recorded.map(|record| record.processes()).unwrap_or_default();
        recorded.into_iter().map(|(_, process)| process).any(ProcessId::is_alive)
            || Namespace::of(ip, &self.dir).processes_of(&self.dir).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Accel, Shape};
    use meshd_builder::ListKind;
    use std::process::{Command, Stdio};

    /// A rack whose meshd is `central`, with a list of one volume.
    struct Fake {
        dir: PathBuf,
        owner: ListOwner,
    }

    fn volume() -> Digest {
        Digest::of(b"volume")
    }

    fn fake(root: &Path, number: u8, central: Option<ProcessId>) -> Fake {
        let dir = root.join(format!("rack{number}"));
        let owner = ListOwner::read_or_create(&dir.join("state"), "rack-a", [number; 8]);
        let owner = owner.expect("made");
        owner.declare(root, ListKind::Volumes, &[volume()].into()).expect("declared");
        let record = Record {
            host_boot: host_boot_id(),
            program: "/meshd".into(),
            user_site: "/site.toml".into(),
            settings: Vec::new(),
            accel: Accel::Tcg,
            shape: Shape::default(),
            console: false,
            central,
            nodes: Vec::new(),
        };
        record.save(&dir).expect("written");
        register(&dir, &site(root, &dir)).expect("registered");
        Fake { dir, owner }
    }

    fn site(blobs: &Path, dir: &Path) -> Site {
        let text = include_str!("../../../site.toml").replace(
            "\"/var/lib/meshd\"",
            &format!("{:?}\nblobs_dir = {blobs:?}", dir.join("state")),
        );
        meshd_config::parse(&text, Path::new("site.toml"))
            .unwrap_or_else(|faults| panic!("{faults}"))
    }

    /// Numbers of the racks whose lists are there.
    fn listed(root: &Path) -> Vec<u8> {
        let path = |number: &u8| {
            root.join(format!("in-use/rack-a.{}.volumes", format!("{number:02x}").repeat(8)))
        };
        (1..9).filter(|number| path(number).is_file()).collect()
    }

    fn sweep(root: &Path) -> Vec<u8> {
        withdraw_dead_racks(root, Path::new("ip")).expect("swept");
        listed(root)
    }

    #[test]
    fn lists_of_dead_racks_are_removed_and_those_of_living_ones_stay() {
        let dir = tempfile::tempdir().expect("a folder");
        let root = dir.path();
        let own = ProcessId::of(std::process::id()).expect("it runs");
        let reused = ProcessId { started: own.started + 1, ..own };
        let living = fake(root, 1, Some(own));
        let dead = fake(root, 2, Some(reused));
        let gone = fake(root, 3, None);
        fs::remove_dir_all(&gone.dir).expect("removed");
        // Another `meshd lab` creates the rack now, or ends it.
        let busy = fake(root, 4, None);
        let lock = lock(&busy.dir).expect("locked");
        assert!(living.owner.list_of_other(root, &volume()).expect("read").is_some());
        assert_eq!(sweep(root), [1, 4]);
        assert!(dead.dir.exists(), "its logs stay");
        drop(lock);
        assert_eq!(sweep(root), [1]);
        assert_eq!(living.owner.list_of_other(root, &volume()).expect("read"), None);
        withdraw(&living.dir, &site(root, &living.dir)).expect("withdrawn");
        assert_eq!((listed(root), sweep(root)), (vec![], vec![]));
        assert_eq!(fs::read_dir(root.join(FOLDER)).expect("there").count(), 0);
    }

    #[test]
    fn process_that_no_record_has_keeps_lists_of_its_rack() {
        let dir = tempfile::tempdir().expect("a folder");
        let fake = fake(dir.path(), 1, None);
        let namespace = Namespace::of(Path::new("ip"), &fake.dir);
        let Ok(()) = namespace.create() else { return };
        let mut command = Command::new("cat");
        command.arg("-").arg(&fake.dir).stdin(Stdio::piped());
        let mut central = namespace.spawn(&mut command).expect("cat exists");
        let with_process = sweep(dir.path());
        central.kill().expect("it ran");
        central.wait().expect("reaped");
        let without = sweep(dir.path());
        namespace.delete().expect("deleted");
        assert_eq!((with_process, without), (vec![1], vec![]));
    }

    #[test]
    fn racks_of_other_machines_and_unknown_lists_are_left_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let root = dir.path();
        let change = |number: u8, machine: &str, host_boot: &str| {
            let path = entry_file(root, &fake(root, number, None).dir);
            let text = fs::read(&path).expect("written");
            let mut entry: RackEntry = serde_json::from_slice(&text).expect("JSON");
            (entry.machine, entry.host_boot) = (machine.to_owned(), host_boot.to_owned());
            fs::write(&path, serde_json::to_vec(&entry).expect("JSON")).expect("written");
        };
        change(1, "another", "another");
        change(2, "", "another");
        change(3, &machine_id(), "before");
        let path = entry_file(root, &fake(root, 4, None).dir);
        fs::write(path, "{").expect("written");
        let earlier = if machine_id().is_empty() { vec![1, 2, 3, 4] } else { vec![1, 2, 4] };
        assert_eq!(sweep(root), earlier);
    }
}
