//! Removes a rack: recorded processes, leftovers of a crash, networks and files.

use super::{record::Record, shared_blobs};
use crate::{LabError, Namespace, host::process::host_boot_id, site::Layout};
use std::{fs, io, path::Path, time::Duration};

/// Longest time that meshd may take to drain its connections, and QEMU to end.
const GRACE: Duration = Duration::from_secs(10);
/// Prefixes of the names of a rack's files. Built images, the files of their builder, and the site
/// file stay.
const PREFIXES: [&str; 4] = ["meshd.log", "state", "admin.sock", "probe.img"];

/// Whether to delete logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logs {
    /// Keep logs for a diagnosis.
    Keep,
    /// Remove logs, because a new rack starts.
    Remove,
}

/// Ends all processes of the rack in this folder and removes its networks and state. Continues
/// after failures and returns the first failure.
pub fn sweep(
    dir: &Path,
    namespace: &Namespace,
    record: Option<&Record>,
    logs: Logs,
) -> Result<(), LabError> {
    let recorded =
        record.filter(|record| record.host_boot == host_boot_id()).map(Record::processes);
    let mut results: Vec<Result<(), LabError>> = recorded
        .unwrap_or_default()
        .iter()
        .map(|(name, process)| process.end(name, GRACE))
        .collect();
    let namespaces = [namespace.all_derived(), vec![namespace.clone()]].concat();
    for namespace in namespaces.iter().filter(|namespace| namespace.exists()) {
        results.extend(
            namespace.processes_of(dir).map(|process| process.end("a process of the rack", GRACE)),
        );
        results.push(namespace.delete());
    }
    results.push(withdraw_lists(dir));
    results.push(remove_files(dir, logs));
    results.push(Record::remove(dir));
    results.into_iter().collect()
}

/// Removes the rack's lists in its folder of blobs, which other sites may share.
fn withdraw_lists(dir: &Path) -> Result<(), LabError> {
    // Without a valid site file, the rack did not serve.
    let Ok(site) = meshd_config::load(&Layout::of(dir, None).site) else { return Ok(()) };
    shared_blobs::withdraw(dir, &site)
}

fn remove_files(dir: &Path, logs: Logs) -> Result<(), LabError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(LabError::file("read", dir))?,
    };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        let is_log = name.ends_with(".log");
        let of_a_node = name
            .strip_prefix("node")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let ours = of_a_node || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        if !ours || (is_log && logs == Logs::Keep) {
            continue;
        }
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(LabError::file("remove", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(logs: Logs) -> Vec<String> {
        let dir = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(dir.path().join("state/ca")).expect("made");
        fs::create_dir_all(dir.path().join("blobs")).expect("made");
        for file in
            ["node1.qmp", "node1.serial.log", "meshd.log", "notes.txt", "site.toml", "blobs/a"]
        {
            fs::write(dir.path().join(file), "").expect("written");
        }
        remove_files(dir.path(), logs).expect("removed");
        let mut left: Vec<String> = fs::read_dir(dir.path())
            .expect("it is there")
            .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        left
    }

    #[test]
    fn cleanup_keeps_images_foreign_files_and_logs() {
        assert_eq!(
            left(Logs::Keep),
            ["blobs", "meshd.log", "node1.serial.log", "notes.txt", "site.toml"]
        );
        assert_eq!(left(Logs::Remove), ["blobs", "notes.txt", "site.toml"]);
    }
}
