//! The folder of machines of Mesh Hypervisor: `/host0/machines`, with one folder for each machine.
//!
//! A machine has a file `UUID` there, and no MAC address. For the import, each folder needs a file
//! `MAC` with that of the boot NIC. `groups` become labels. Manifests and packages belong to
//! overlays and profiles here.

use meshd_model::fleet::{MAX_MACHINE_ROWS, MachineRow, RowFault};
use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

/// Maximum size of a file of a machine, in bytes.
const MAX_FILE: u64 = 64 << 10;
/// Maximum number of folders that are skipped.
const MAX_SKIPPED: usize = 1000;
/// UUID of the folder for all other machines.
const DEFAULT: &str = "default";

/// Reads all machines. A folder with a file `SKIP`, and that for all other machines, is skipped.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn parse(folder: &Path) -> io::Result<(Vec<MachineRow>, Vec<RowFault>)> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.path().is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        // The list is then too long, and refused.
        if names.len() > MAX_MACHINE_ROWS + MAX_SKIPPED {
            break;
        }
    }
    names.sort();
    let mut rows = Vec::new();
    let mut faults = Vec::new();
    // Folders have no lines: the order of their names.
    for (index, name) in names.iter().enumerate() {
        match machine(&folder.join(name), name, index + 1) {
            Ok(row) => rows.extend(row),
            Err(fault) => faults.push(fault),
        }
    }
    Ok((rows, faults))
}

fn machine(folder: &Path, name: &str, line: usize) -> Result<Option<MachineRow>, RowFault> {
    let read = |file: &str| text(&folder.join(file));
    let fault = |file: &str, cause: String, hint: &str| {
        RowFault::new(line, "mac", format!("{name}/{file}: {cause}"), hint)
    };
    let uuid = read("UUID").map_err(|error| {
        fault("UUID", error.to_string(), "each machine of Mesh Hypervisor has this file")
    })?;
    if uuid.trim() == DEFAULT || folder.join("SKIP").exists() {
        return Ok(None);
    }
    let mac = read("MAC").map_err(|error| {
        let hint = "Mesh Hypervisor keeps none: write the MAC address of the boot NIC into it";
        fault("MAC", error.to_string(), hint)
    })?;
    let groups = match read("groups") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        groups => groups.map_err(|error| {
            fault("groups", error.to_string(), "correct the file, or remove it")
        })?,
    };
    let host = read("hostname").unwrap_or_default();
    let host = host.trim();
    let labels = groups.split_whitespace().map(|group| format!("{}=true", group.to_lowercase()));
    Ok(Some(MachineRow {
        line,
        mac: mac.trim().to_owned(),
        name: if host.is_empty() { name } else { host }.to_lowercase(),
        labels: labels.collect::<Vec<_>>().join(" "),
        ..MachineRow::default()
    }))
}

fn text(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    let size = File::open(file)?.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if size as u64 > MAX_FILE {
        return Err(io::Error::other("it is larger than 64 KiB"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_of_mesh_hypervisor_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &[u8]| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("my-server/UUID", b"10eff964\n");
        write("my-server/MAC", b"52:54:00:00:00:01\n");
        write("my-server/groups", b"baseline\ntimezone-est\n");
        write("my-server/manifest", b"O MODE=root:root:0644\n");
        write("named/UUID", b"20eff964\n");
        write("named/MAC", b"52:54:00:00:00:02");
        write("named/hostname", b"Node1\n");
        write("default/UUID", b"default\n");
        write("old/UUID", b"30eff964\n");
        write("old/SKIP", b"");
        write("lacks/UUID", b"40eff964\n");
        write("empty/groups", b"\xff");
        let (rows, faults) = parse(folder.path()).unwrap();
        let [server, named] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!((server.name.as_str(), server.mac.as_str()), ("my-server", "52:54:00:00:00:01"));
        assert_eq!(server.labels, "baseline=true timezone-est=true");
        assert_eq!(named.name, "node1");
        let messages: Vec<&str> = faults.iter().map(|fault| fault.message.as_str()).collect();
        let [empty, lacks] = messages.as_slice() else { panic!("{messages:?}") };
        assert!(empty.starts_with("empty/UUID: "), "{empty}");
        assert!(lacks.starts_with("lacks/MAC: "), "{lacks}");
        assert!(parse(&folder.path().join("none")).is_err());
    }
}
