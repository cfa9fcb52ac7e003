//! Are the files that virtual machines stand on whole (IM-6)?

use super::{Context, runs_machines, store::STORE, unproven, verdict};
use crate::{
    id::Digest,
    wire::{Check, CheckStatus},
};

/// The folder of files by digest, below [`STORE`]. Under its digest lies only what has it: it was checked as it came.
const VOLUMES: &str = "volumes";
/// Most files that are named.
const MAX_NAMED: usize = 4;

/// No file of a virtual machine is half there.
pub fn images(context: &Context<'_>) -> Check {
    const NAME: &str = "images";
    let Context { tree, config, .. } = context;
    if !runs_machines(config) {
        return verdict(NAME, CheckStatus::Skip, "the profile runs no virtual machines", "");
    }
    let folder = format!("{STORE}/{VOLUMES}");
    let (whole, other): (Vec<String>, Vec<String>) =
        tree.list(&folder).into_iter().partition(|name| name.parse::<Digest>().is_ok());
    let empty = whole.iter().find(|name| tree.bytes(&format!("{folder}/{name}"), 1).is_none_or(|byte| byte.is_empty()));
    if let Some(name) = empty {
        let detail = format!("{folder}/{name} cannot be read, or holds nothing");
        return verdict(NAME, CheckStatus::Fail, detail, "remove that file: it is fetched again when it is needed");
    }
    if other.is_empty() {
        return verdict(NAME, CheckStatus::Pass, format!("{} whole", whole.len()), "");
    }
    let named = other.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let detail = format!("{} whole, {} not: {named}", whole.len(), other.len());
    unproven(NAME, detail, "wait until they are fetched: `meshd vm list` shows how far they are")
}
