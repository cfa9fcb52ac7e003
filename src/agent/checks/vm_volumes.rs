//! Checks that the volumes of VMs are complete and readable (IM-6).

use super::{Context, NO_VMS, fail, pass, runs_vms, skip, unproven};
use crate::vm;
use meshd_proto::{Check, VOLUMES_CHECK};
use meshd_types::Digest;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Read as _,
};

/// Maximum number of files in the detail.
const MAX_NAMED: usize = 4;
/// Maximum number of files that are checked.
const MAX_FILES: usize = 65_536;

/// Checks that no volume is incomplete.
pub fn volumes(context: &Context) -> Check {
    const NAME: &str = VOLUMES_CHECK;
    if !runs_vms(&context.config) {
        return skip(NAME, NO_VMS);
    }
    let folder = vm::volumes(&context.vms);
    let entries = fs::read_dir(&folder).into_iter().flatten().take(MAX_FILES).flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    // A complete download is renamed to its digest.
    let (complete, incomplete): (BTreeSet<String>, BTreeSet<String>) =
        names.partition(|name| name.parse::<Digest>().is_ok());
    let is_readable = |name: &&String| {
        File::open(folder.join(name)).is_ok_and(|mut file| file.read(&mut [0]).is_ok_and(|n| n > 0))
    };
    if let Some(name) = complete.iter().find(|name| !is_readable(name)) {
        let detail = format!("{}/{name} is empty or unreadable", folder.display());
        return fail(
            NAME,
            detail,
            "remove the file: the agent downloads it again when a VM needs it",
        );
    }
    if incomplete.is_empty() {
        return pass(NAME, format!("{} complete", complete.len()));
    }
    let named =
        incomplete.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let detail = format!("{} complete, {} incomplete: {named}", complete.len(), incomplete.len());
    unproven(NAME, detail, "wait for the downloads: `meshd vm list` shows their progress")
}
