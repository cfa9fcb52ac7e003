//! Reload: overlays and secrets that were edited and images that were built while meshd runs become visible as a whole, or not at all.

use super::{DaemonError, build::load_catalog};
use crate::id::Digest;
use crate::serve::central::Shared;
use std::{
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How often the folders are looked at. Only names, sizes and times are read.
const INTERVAL: Duration = Duration::from_secs(2);
/// Files looked at, at most; a tree that is larger is reloaded by SIGHUP only.
const MAX_FILES: usize = 20_000;

/// Watches overlays and image manifests until it is told to stop.
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
        let now = look(&central).await;
        if forced || now != seen {
            seen = now;
            reload(&central).await;
        }
    }
}

async fn reload(central: &Shared) {
    let reader = central.clone();
    match tokio::task::spawn_blocking(move || load_catalog(&reader.site())).await {
        Ok(Ok(catalog)) => {
            central.replace_catalog(catalog);
            tracing::info!("overlays and images were read anew");
        }
        Ok(Err(error)) => {
            let faults = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            tracing::error!(%error, faults, "what was edited has faults; the last good overlays and images stay");
        }
        Err(error) => tracing::error!(%error, "reading overlays and images failed; the last good ones stay"),
    }
}

async fn look(central: &Shared) -> Option<Digest> {
    let site = central.site();
    let mut roots = vec![site.overlays_dir.clone(), site.blobs_dir.join("images")];
    roots.extend(site.secrets.values().cloned());
    tokio::task::spawn_blocking(move || fingerprint(&roots)).await.ok().flatten()
}

/// Names, sizes and times of all files below some folders.
fn fingerprint(roots: &[PathBuf]) -> Option<Digest> {
    let mut files = Vec::new();
    for root in roots {
        // A secret is one file.
        look_at(root, root.metadata().ok(), &mut files);
        walk(root, &mut files);
    }
    files.sort();
    (files.len() < MAX_FILES).then(|| Digest::of_fields(files.iter().map(String::as_bytes)))
}

fn walk(dir: &Path, files: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if files.len() >= MAX_FILES {
            return;
        }
        if meta.is_dir() {
            walk(&entry.path(), files);
        }
        look_at(&entry.path(), Some(meta), files);
    }
}

fn look_at(path: &Path, meta: Option<std::fs::Metadata>, files: &mut Vec<String>) {
    let Some(meta) = meta else { return };
    let modified = meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    files.push(format!("{} {} {}", path.display(), meta.len(), modified.as_nanos()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_is_seen_and_a_look_alone_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let roots = [dir.path().to_owned()];
        let before = fingerprint(&roots);
        assert_eq!(before, fingerprint(&roots));
        std::fs::write(dir.path().join("motd"), "hello").unwrap();
        assert_ne!(before, fingerprint(&roots));
    }
}
