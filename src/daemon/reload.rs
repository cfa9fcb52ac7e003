//! Reload: detects a changed site file, overlay, secret, agent or stage 1, and new images.

use super::DaemonError;
use meshd_central::Shared;
use meshd_config::Site;
use meshd_image::catalog::{
    agent_path, stage1_path,
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

/// Reloads after each change of [`watched_paths`] and at SIGHUP, until `stop`.
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
    let paths = watched_paths(&central.site());
    tokio::task::spawn_blocking(move || fingerprint(&paths)).await.ok().flatten()
}

/// Returns the files and folders that a reload reads.
fn watched_paths(site: &Site) -> Vec<PathBuf> {
    let mut paths = vec![site.file.clone(), site.overlays_dir.clone()];
    paths.extend([agent_path(site), stage1_path(site)]);
    paths.extend([IMAGES, BUNDLES].map(|kind| site.blobs_dir.join(kind)));
    paths.extend(site.secrets.values().map(|secret| secret.file.clone()));
    paths
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
    fn fingerprint_changes_with_the_agent_and_with_stage_1() {
        let dir = tempfile::tempdir().unwrap();
        let binary = format!("[agent]\nbinary = {:?}\n", dir.path().join("mesh-agent"));
        let text = include_str!("../../site.toml").replace("[agent]\n", &binary);
        let site = meshd_config::parse(&text, Path::new("site.toml")).unwrap();
        let mut before = fingerprint(&watched_paths(&site));
        for name in ["mesh-agent", "stage1"] {
            std::fs::write(dir.path().join(name), "program").unwrap();
            let after = fingerprint(&watched_paths(&site));
            assert_ne!(before, after, "{name}");
            before = after;
        }
    }

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
