//! Reload: detects edited site files, overlays and secrets, and new images.

use super::DaemonError;
use meshd_central::Shared;
use meshd_image::catalog::{
    agent_path,
    versions::{BUNDLES, IMAGES},
};
use meshd_model::fleet::Verb;
use meshd_types::{Digest, is_rootfs};
use std::{
    fs::Metadata,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Interval of checks for changed files. A check reads only names, sizes and times.
const INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of watched files. A larger tree is reloaded only by SIGHUP.
const MAX_FILES: usize = 20_000;

/// Maximum depth of watched folders.
const MAX_DEPTH: usize = 32;

/// Watches overlays and image manifests until `stop`.
pub(super) async fn run(central: Shared, stop: CancellationToken) -> Result<(), DaemonError> {
    let mut hangup = signal(SignalKind::hangup()).map_err(DaemonError::Signal)?;
    let mut interval = tokio::time::interval(INTERVAL);
    let mut seen = look(&central).await;
    loop {
        let forced = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = hangup.recv() => true,
            _ = interval.tick() => false,
        };
        let Some(now) = stop.run_until_cancelled(look(&central)).await else { return Ok(()) };
        if forced || now != seen {
            seen = now;
            let context = central.env.own_audit_context(Verb::Reload);
            if stop.run_until_cancelled(central.generations.reload(&context)).await.is_none() {
                return Ok(());
            }
        }
    }
}

async fn look(central: &Shared) -> Option<Digest> {
    let site = central.site();
    let blobs = [IMAGES, BUNDLES].map(|kind| site.blobs_dir.join(kind));
    let mut roots = vec![site.file.clone(), site.overlays_dir.clone(), agent_path(&site)];
    roots.extend(blobs.into_iter().chain(site.secrets.values().map(|secret| secret.file.clone())));
    tokio::task::spawn_blocking(move || fingerprint(&roots)).await.ok().flatten()
}

/// Returns a digest of the names, sizes and times of all files below some folders.
fn fingerprint(roots: &[PathBuf]) -> Option<Digest> {
    let mut files = Vec::new();
    for root in roots {
        walk(root, 0, &mut files);
    }
    files.sort();
    (files.len() < MAX_FILES).then(|| Digest::of_fields(files.iter().map(String::as_bytes)))
}

/// Follows links down to `rootfs/`, as the reader of overlays does.
fn walk(dir: &Path, depth: usize, files: &mut Vec<String>) {
    if let Ok(meta) = std::fs::metadata(dir) {
        files.push(line(dir, &meta));
    }
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if files.len() >= MAX_FILES {
            return;
        }
        let path = entry.path();
        files.push(line(&path, &meta));
        if meta.is_symlink() && !dir.components().any(|part| is_rootfs(part.as_os_str())) {
            let Ok(target) = std::fs::metadata(&path) else { continue };
            files.push(line(&path, &target));
            if target.is_dir() && depth < MAX_DEPTH {
                walk(&path, depth + 1, files);
            }
        } else if meta.is_dir() && depth < MAX_DEPTH {
            walk(&path, depth + 1, files);
        }
    }
}

fn line(path: &Path, meta: &Metadata) -> String {
    let modified =
        meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    // The change time tells of a new mode.
    let changed = (meta.ctime(), meta.ctime_nsec());
    format!("{} {} {} {changed:?}", path.display(), meta.len(), modified.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_changes_only_after_edit() {
        let dir = tempfile::tempdir().unwrap();
        let roots = [dir.path().to_owned()];
        let before = fingerprint(&roots);
        assert_eq!(before, fingerprint(&roots));
        std::fs::write(dir.path().join("motd"), "hello").unwrap();
        assert_ne!(before, fingerprint(&roots));
    }
}
