//! Checks the volumes of VMs against their digests (IM-6).

use super::{Context, runs_machines, unproven, verdict};
use crate::vm;
use meshd_proto::{Check, CheckStatus};
use meshd_types::Digest;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Read as _,
};

/// Maximum number of files that the detail names.
const MAX_NAMED: usize = 4;
/// Maximum number of files that are checked.
const MAX_FILES: usize = 65_536;

/// Checks that no file of a virtual machine is incomplete.
pub fn images(context: &Context<'_>) -> Check {
    const NAME: &str = "images";
    if !runs_machines(context.config) {
        return verdict(NAME, CheckStatus::Skip, "the profile runs no virtual machines", "");
    }
    let folder = vm::volumes(context.vms);
    let entries = fs::read_dir(&folder).into_iter().flatten().take(MAX_FILES).flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    // A file named by its digest was checked when it arrived.
    let (whole, other): (BTreeSet<String>, BTreeSet<String>) = names.partition(|name| name.parse::<Digest>().is_ok());
    let holds =
        |name: &&String| File::open(folder.join(name)).is_ok_and(|mut file| file.read(&mut [0]).is_ok_and(|n| n > 0));
    let empty = whole.iter().find(|name| !holds(name));
    if let Some(name) = empty {
        let detail = format!("{}/{name} cannot be read, or holds nothing", folder.display());
        return verdict(NAME, CheckStatus::Fail, detail, "remove that file: it is fetched again when it is needed");
    }
    if other.is_empty() {
        return verdict(NAME, CheckStatus::Pass, format!("{} whole", whole.len()), "");
    }
    let named = other.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let detail = format!("{} whole, {} not: {named}", whole.len(), other.len());
    unproven(NAME, detail, "wait until they are fetched: `meshd vm list` shows how far they are")
}
