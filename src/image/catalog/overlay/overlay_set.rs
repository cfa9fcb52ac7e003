//! All overlays of a site: named ones, and those of single nodes.

use super::{Layer, Overlay, read_overlay};
use meshd_config::{Fault, Faults, SecretSource};
use meshd_types::{Digest, NodeId, OverlayName, VarName, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Folder in `overlays_dir` with the overlays of single nodes; no overlay can have this name.
pub const NODES: &str = "nodes";
/// Maximum number of overlays of a site.
const MAX_OVERLAYS: usize = 256;
/// Maximum number of nodes with their own overlay.
const MAX_NODES: usize = 16_384;

/// All valid overlays of a site.
#[derive(Debug, Clone, Default)]
pub struct Overlays {
    /// Named by profiles and groups.
    pub named: BTreeMap<OverlayName, Overlay>,
    /// Overlays of single nodes.
    pub nodes: BTreeMap<NodeId, Overlay>,
    /// Placeholder of each secret of the site in a rendering: a mark that changes with the value
    /// and does not reveal it.
    pub secret_marks: BTreeMap<VarName, Digest>,
    /// The overlays that may use a secret; all may use a secret that is not here.
    pub secret_users: BTreeMap<VarName, BTreeSet<OverlayName>>,
}

impl Overlays {
    /// Returns one digest over all overlays.
    pub fn digest(&self) -> Digest {
        let named = self.named.iter().map(|(name, overlay)| (name.to_string(), overlay.digest));
        let nodes =
            self.nodes.iter().map(|(id, overlay)| (format!("{NODES}/{id}"), overlay.digest));
        let marks = self.secret_marks.iter().map(|(name, mark)| (format!("secret {name}"), *mark));
        let users = self.secret_users.iter().map(|(name, overlays)| {
            let overlays = overlays.iter().map(|overlay| overlay.as_str().as_bytes());
            (format!("users of {name}"), Digest::of_fields(overlays))
        });
        let fields: Vec<(String, Digest)> = named.chain(nodes).chain(marks).chain(users).collect();
        Digest::of_fields(
            fields.iter().flat_map(|(name, digest)| [name.as_bytes(), digest.0.as_slice()]),
        )
    }

    /// Takes over which overlays may use the secrets of a site.
    pub fn limit_secrets(&mut self, secrets: &BTreeMap<VarName, SecretSource>) {
        let limited = secrets
            .iter()
            .filter_map(|(name, source)| Some((name.clone(), source.overlays.clone()?)));
        self.secret_users = limited.collect();
    }

    /// True if an overlay may use a secret.
    pub fn may_use(&self, overlay: &Layer, secret: &VarName) -> bool {
        let is_user = |users: &BTreeSet<OverlayName>| match overlay {
            Layer::Named(name) => users.contains(name),
            Layer::Node(_) => false,
        };
        self.secret_users.get(secret).is_none_or(is_user) || !failpoint::defends("secret-users")
    }

    /// Returns all overlays, those of nodes last.
    pub fn all(&self) -> impl Iterator<Item = &Overlay> + Clone {
        self.named.values().chain(self.nodes.values())
    }
}

/// Result of reading all overlays.
#[derive(Debug, Default)]
pub struct Reading {
    pub overlays: Overlays,
    /// Existing overlays with faults.
    pub broken: BTreeSet<Layer>,
    /// All faults of all overlays.
    pub faults: Vec<Fault>,
}

/// Reads every overlay of the site. The error contains all faults.
pub fn read_overlays(overlays_dir: &Path) -> Result<Overlays, Faults> {
    let Reading { overlays, faults, .. } = read_all(overlays_dir);
    if faults.is_empty() { Ok(overlays) } else { Err(Faults(faults)) }
}

/// Reads every overlay of the site and returns valid ones together with all faults.
pub fn read_all(overlays_dir: &Path) -> Reading {
    let mut reading = Reading::default();
    let named = folders::<OverlayName>(
        overlays_dir,
        MAX_OVERLAYS,
        "rename the folder",
        &mut reading.faults,
    );
    for (name, folder) in named.into_iter().filter(|(name, _)| name.as_str() != NODES) {
        if let Some(overlay) = reading.read(&folder, Layer::Named(name.clone())) {
            reading.overlays.named.insert(name, overlay);
        }
    }
    let nodes_dir = overlays_dir.join(NODES);
    if nodes_dir.is_dir() {
        let hint = "name it by the node's ID, as `meshd node list` shows it";
        for (id, folder) in folders::<NodeId>(&nodes_dir, MAX_NODES, hint, &mut reading.faults) {
            if let Some(overlay) = reading.read(&folder, Layer::Node(id)) {
                reading.overlays.nodes.insert(id, overlay);
            }
        }
    }
    reading
}

impl Reading {
    fn read(&mut self, folder: &Path, name: Layer) -> Option<Overlay> {
        let before = self.faults.len();
        let overlay = read_overlay(folder, name.clone(), &mut self.faults);
        if self.faults.len() > before {
            self.broken.insert(name);
            return None;
        }
        Some(overlay)
    }
}

/// Lists the overlays of a folder. Stray files are ignored; a folder with an invalid name is a
/// fault.
fn folders<N: FromStr<Err: std::fmt::Display> + Ord>(
    dir: &Path,
    most: usize,
    hint: &str,
    faults: &mut Vec<Fault>,
) -> Vec<(N, PathBuf)> {
    let listing = fs::read_dir(dir).map_err(|error| {
        let what = format!("the folder of overlays cannot be read: {error}");
        faults.push(Fault::of_file(dir, what, "make it, or set [site].overlays_dir"));
    });
    let mut found = Vec::new();
    for folder in listing
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
    {
        let text = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match text.parse::<N>() {
            Ok(name) => found.push((name, folder)),
            Err(_) if text.starts_with('.') => {}
            Err(error) => faults.push(Fault::of_file(&folder, error.to_string(), hint)),
        }
    }
    found.sort();
    if found.len() > most {
        let what = format!("{} overlays, more than {most}", found.len());
        faults.push(Fault::of_file(dir, what, "move unused ones elsewhere"));
        found.truncate(most);
    }
    found
}
