//! The drain hooks that the overlays of the node bring.

use crate::system::Tree;
use meshd_proto::{DRAIN_HOOKS, HookName, MAX_DRAIN_HOOKS};
use std::{fs::Metadata, os::unix::fs::MetadataExt as _};

/// Lists the drain hooks, sorted. A program that another user could change is no hook.
pub fn drain_hooks(tree: &Tree) -> Vec<HookName> {
    let folder = tree.path(DRAIN_HOOKS);
    if !folder.symlink_metadata().is_ok_and(|metadata| is_protected(&metadata)) {
        return Vec::new();
    }
    let mut hooks = Vec::new();
    for file in tree.list(DRAIN_HOOKS) {
        let metadata = folder.join(&file).symlink_metadata();
        let is_hook = metadata.is_ok_and(|metadata| {
            metadata.is_file() && metadata.mode() & 0o100 != 0 && is_protected(&metadata)
        });
        match file.parse::<HookName>() {
            Ok(name) if is_hook => hooks.push(name),
            _ => tracing::warn!(
                file,
                "not a drain hook: needs a plain name, root as its owner, and mode 0755"
            ),
        }
    }
    if hooks.len() > MAX_DRAIN_HOOKS {
        tracing::warn!(count = hooks.len(), most = MAX_DRAIN_HOOKS, "drain hooks are ignored");
        hooks.truncate(MAX_DRAIN_HOOKS);
    }
    hooks
}

/// Returns true if only the user of the agent, root on a node, may change the file.
fn is_protected(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0
}
