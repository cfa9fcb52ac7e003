//! The plan of a node's files, with the origin of each.
//!
//! Pure. Joins packages, services, modules and kernel parameters of all layers, and writes them as
//! files that Alpine or systemd reads.

use super::{
    PROGRAM_FILE, RenderInput, SharedFiles, bootable,
    merge::{Merged, Piece, fault, joined, merge},
    rendered::{Kind, Origin, RenderedFile},
    secret::SecretFile,
    values::values,
};
use crate::catalog::overlay::{AGENT_PATH, Overlay, Source, System};
use bytes::Bytes;
use meshd_config::{Fault, Faults};
use meshd_model::image_kind::{Blob, ImageKindName};
use meshd_proto::mesh_init::{
    FetchedBundle, FetchedFile, MESH_INIT_CONFIG_FILE, MESH_INIT_PROGRAM, MESH_INIT_VERSION,
    MeshInitConfig, PACKAGES_FILE,
};
use meshd_types::{Digest, SafePath, failpoint};
use minijinja::Value;
use std::collections::BTreeMap;

/// List of digests against which mesh-init verifies a node before any other program runs.
const MANIFEST_FILE: &str = "/etc/meshd/manifest.sha256";
/// File with the kernel parameters of all layers. Overlay files with a higher number are applied
/// later.
const SYSCTL_FILE: &str = "/etc/sysctl.d/50-meshd.conf";
/// List of modules that systemd loads.
const MODULES_FILE: &str = "/etc/modules-load.d/50-meshd.conf";
/// Folder of units, and that of the links to enabled ones.
const UNITS: &str = "/etc/systemd/system";
const WANTED_UNITS: &str = "/etc/systemd/system/multi-user.target.wants";
/// Part of an image with the kernel's modules, which mesh-init fetches.
const MODLOOP: &str = "modloop";
/// Files that Alpine's initramfs or package scripts edit before mesh-init verifies the node.
const EDITED_ON_NODE: [&str; 8] = [
    "/etc/apk/arch",
    "/etc/apk/world",
    "/etc/group",
    "/etc/inittab",
    "/etc/passwd",
    "/etc/resolv.conf",
    "/etc/securetty",
    "/etc/shadow",
];

/// The overlay without the per-boot member.
pub(super) struct Planned<'a> {
    /// Files, ordered by path.
    pub(super) files: Vec<RenderedFile>,
    /// Files to create at delivery.
    pub(super) secrets: Vec<SecretFile>,
    /// Overlays whose plain files no other overlay changes, so that they are packed once for all
    /// nodes.
    pub(super) shared: Vec<SharedFiles<'a>>,
}

/// Purpose of a rendering.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A machine boots it.
    Boot,
    /// Some overlays alone, for golden files.
    Sample,
}

/// Plans all files; the error contains all faults.
pub(super) fn plan<'a>(input: &RenderInput<'a>, purpose: Purpose) -> Result<Planned<'a>, Faults> {
    let mut faults = Vec::new();
    let merged = merge(input, &mut faults);
    if purpose == Purpose::Boot && failpoint::defends("bootable-overlays") {
        faults.extend(bootable::find(input, &merged));
    }
    let values = values(input, &merged, &mut faults);
    let mut plan = Plan { input, merged: &merged, values, files: Vec::new(), secrets: Vec::new() };
    for (path, pieces) in &merged.paths {
        if let Err(found) = plan.path(path, pieces) {
            faults.extend(found);
        }
    }
    plan.generated();
    let Plan { mut files, secrets, .. } = plan;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    conflicts(input, &files, &mut faults);
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    let manifest = rendered(
        input,
        valid_path(MANIFEST_FILE),
        Kind::File(manifest(&files)),
        OWN_FILE,
        vec![Origin::Generated],
    );
    let at = files.partition_point(|file| file.path < manifest.path);
    files.insert(at, manifest);
    let shared = shared_overlays(&merged, input.image.system);
    Ok(Planned { files, secrets, shared })
}

fn shared_overlays<'a>(merged: &Merged<'a>, system: System) -> Vec<SharedFiles<'a>> {
    let mut left = vec![0; merged.layers.len()];
    for pieces in merged.paths.values() {
        if let [piece] = pieces.as_slice()
            && piece.entry.is_plain()
        {
            left[piece.layer] += 1;
        }
    }
    let plain =
        |overlay: &Overlay| overlay.entries_for(system).filter(|(_, it)| it.is_plain()).count();
    let layers = merged.layers.iter().zip(left);
    layers
        .filter(|(overlay, left)| *left > 0 && plain(overlay) == *left)
        .map(|(overlay, _)| SharedFiles { overlay, system })
        .collect()
}

/// Mode and owner of a generated file.
const OWN_FILE: (u32, (u64, u64)) = (0o644, (0, 0));

struct Plan<'a> {
    input: &'a RenderInput<'a>,
    merged: &'a Merged<'a>,
    values: Vec<Value>,
    files: Vec<RenderedFile>,
    secrets: Vec<SecretFile>,
}

impl Plan<'_> {
    fn layer(&self, piece: &Piece<'_>) -> &Overlay {
        self.merged.layers[piece.layer]
    }

    fn path(&mut self, path: &SafePath, pieces: &[Piece<'_>]) -> Result<(), Vec<Fault>> {
        let Some(first) = pieces.first() else { return Ok(()) };
        let origins = self.origins(pieces.iter().map(|piece| piece.layer));
        let secret = self.is_secret(path, pieces, first)?;
        let kind = match &first.entry.source {
            Source::File(_) | Source::Template { .. } => match self.text(pieces)? {
                Some(text) if secret => Kind::Secret(text),
                Some(text) => Kind::File(text),
                None => return Ok(()),
            },
            Source::Agent => Kind::Agent,
            Source::Link(target) => Kind::Link(target.clone()),
            Source::Directory => Kind::Directory,
        };
        let how = (first.entry.mode, first.entry.owner);
        let mut file = rendered(self.input, path.clone(), kind, how, origins);
        if secret {
            let recipe = SecretFile::new(path, pieces, &self.merged.layers, &self.values);
            file.digest = recipe.digest(file.digest, &self.input.overlays.secret_marks);
            self.secrets.push(recipe);
        }
        self.files.push(file);
        Ok(())
    }

    /// Returns whether any piece has a secret. Reports a fault if users other than root could read
    /// the file.
    fn is_secret(
        &self,
        path: &SafePath,
        pieces: &[Piece<'_>],
        first: &Piece<'_>,
    ) -> Result<bool, Vec<Fault>> {
        let mut secret = false;
        for piece in pieces {
            let overlay = self.layer(piece);
            let Some(name) = piece.entry.source.secret(&overlay.variables) else { continue };
            secret = true;
            if (first.entry.mode, first.entry.owner) != (0o600, (0, 0)) {
                let owner = &self.layer(first).name;
                let what = format!(
                    "adds the secret `{name}` to {path}, which is not 0600 and root's in overlay {owner}"
                );
                return Err(vec![fault(
                    overlay,
                    &piece.entry.location,
                    what,
                    "write it to a separate file",
                )]);
            }
        }
        Ok(secret)
    }

    /// Concatenates all pieces, each on separate lines. Returns `None` if an optional file is
    /// empty.
    fn text(&self, pieces: &[Piece<'_>]) -> Result<Option<Bytes>, Vec<Fault>> {
        let (mut whole, mut faults): (Option<Bytes>, _) = (None, Vec::new());
        for piece in pieces {
            let text = match &piece.entry.source {
                Source::File(bytes) => bytes.clone(),
                Source::Template { file, omit_empty, .. } => {
                    match self.layer(piece).templates.render(file, &self.values[piece.layer]) {
                        Ok(text) if *omit_empty && text.trim().is_empty() => continue,
                        Ok(text) => Bytes::from(text),
                        Err(fault) => {
                            faults.push(fault);
                            continue;
                        }
                    }
                }
                Source::Agent | Source::Link(_) | Source::Directory => continue,
            };
            whole = Some(match whole {
                None => text,
                Some(before) => joined(&before, &text),
            });
        }
        if faults.is_empty() { Ok(whole) } else { Err(faults) }
    }

    fn origins(&self, layers: impl IntoIterator<Item = usize>) -> Vec<Origin> {
        layers
            .into_iter()
            .map(|layer| Origin::Overlay(self.merged.layers[layer].name.clone()))
            .collect()
    }

    /// Adds the files with packages, modules, services and kernel parameters.
    fn generated(&mut self) {
        let merged = self.merged;
        match self.input.image.system {
            System::Alpine => self.generate_for_alpine(),
            System::Systemd => self.generate_for_systemd(),
        }
        if !merged.sysctl.is_empty() {
            let text = merged
                .sysctl
                .iter()
                .map(|(name, value)| format!("{name} = {value}\n"))
                .collect::<String>();
            self.generate_file(SYSCTL_FILE, Kind::File(text.into()), |overlay| {
                !overlay.sysctl.is_empty()
            });
        }
    }

    /// Adds modules and the runlevels of OpenRC; for a node that installs packages at boot, also their
    /// lists and mesh-init with its configuration.
    fn generate_for_alpine(&mut self) {
        let merged = self.merged;
        // A root image contains its packages, and stage 1 is its first program.
        if self.input.image.kind == ImageKindName::Alpine {
            let packages = || lines(merged.packages.iter().copied());
            let declares = |overlay: &Overlay| !overlay.packages.is_empty();
            self.generate_file("/etc/apk/world", packages(), declares);
            self.generate_file(PACKAGES_FILE, packages(), declares);
            self.generate_mesh_init();
        }
        let modules = lines(merged.modules.iter().copied());
        self.generate_file("/etc/modules", modules, |overlay| !overlay.modules.is_empty());
        for (service, enabled) in &merged.services {
            let path = format!("/etc/runlevels/{}/{service}", enabled.level);
            self.generate_link(&path, format!("/etc/init.d/{service}"), &enabled.layers);
        }
    }

    /// Adds the first program of a node with an agent.
    fn generate_mesh_init(&mut self) {
        let brings_agent =
            |overlay: &Overlay| overlay.entries.values().any(|entry| entry.source == Source::Agent);
        let Some(modloop) = self.input.image.fetched_parts.get(MODLOOP) else { return };
        if !self.merged.paths.keys().any(|path| path.to_string() == AGENT_PATH) {
            return;
        }
        let fetched = |blob: &Blob| FetchedFile { digest: blob.digest, size: blob.size };
        let config = MeshInitConfig {
            version: MESH_INIT_VERSION,
            image: self.input.image.name.clone(),
            modloop: fetched(modloop),
            bundles: (self.input.image.bundles.iter())
                .map(|(name, layer)| FetchedBundle { name: name.clone(), layer: fetched(layer) })
                .collect(),
        };
        let mut json = serde_json::to_vec_pretty(&config).expect("plain data");
        json.push(b'\n');
        self.generate_file(MESH_INIT_CONFIG_FILE, Kind::File(json.into()), brings_agent);
        self.generate(MESH_INIT_PROGRAM, Kind::MeshInit, PROGRAM_FILE, brings_agent);
    }

    /// Adds the list of modules and the links of enabled and masked units.
    fn generate_for_systemd(&mut self) {
        let merged = self.merged;
        if !merged.modules.is_empty() {
            let modules = lines(merged.modules.iter().copied());
            self.generate_file(MODULES_FILE, modules, |overlay| !overlay.modules.is_empty());
        }
        for (unit, layers) in &merged.units {
            let own = format!("{UNITS}/{unit}");
            let is_own = merged.paths.keys().any(|path| path.to_string() == own);
            let target = if is_own { own } else { format!("/usr/lib/systemd/system/{unit}") };
            self.generate_link(&format!("{WANTED_UNITS}/{unit}"), target, layers);
        }
        for (unit, layers) in &merged.masked {
            let path = format!("{UNITS}/{unit}");
            self.files.retain(|file| file.path.to_string() != path);
            self.generate_link(&path, "/dev/null".to_owned(), layers);
        }
    }

    fn generate_link(&mut self, path: &str, target: String, layers: &[usize]) {
        let origins =
            [Origin::Generated].into_iter().chain(self.origins(layers.iter().copied())).collect();
        let link = Kind::Link(target);
        self.files.push(rendered(self.input, valid_path(path), link, (0o777, (0, 0)), origins));
    }

    fn generate_file(&mut self, path: &str, kind: Kind, declares: impl Fn(&Overlay) -> bool) {
        self.generate(path, kind, OWN_FILE, declares);
    }

    fn generate(
        &mut self,
        path: &str,
        kind: Kind,
        how: (u32, (u64, u64)),
        declares: impl Fn(&Overlay) -> bool,
    ) {
        let layers =
            (0..self.merged.layers.len()).filter(|number| declares(self.merged.layers[*number]));
        let origins = [Origin::Generated].into_iter().chain(self.origins(layers)).collect();
        self.files.push(rendered(self.input, valid_path(path), kind, how, origins));
    }
}

fn valid_path(path: &str) -> SafePath {
    SafePath::new(path).expect("made of constants and plain names")
}

fn lines<'a>(names: impl Iterator<Item = &'a str>) -> Kind {
    Kind::File(Bytes::from(names.map(|name| format!("{name}\n")).collect::<String>()))
}

fn rendered(
    input: &RenderInput<'_>,
    path: SafePath,
    kind: Kind,
    (mode, owner): (u32, (u64, u64)),
    origins: Vec<Origin>,
) -> RenderedFile {
    let (digest, size) = match &kind {
        Kind::File(bytes) | Kind::Secret(bytes) => (Digest::of(bytes), bytes.len() as u64),
        Kind::Agent => (input.programs.agent.digest, input.programs.agent.size()),
        Kind::MeshInit => (input.programs.mesh_init.digest, input.programs.mesh_init.size()),
        Kind::Link(target) => (Digest::of(target.as_bytes()), 0),
        Kind::Directory => (Digest::of(b""), 0),
    };
    RenderedFile { path, kind, mode, owner, origins, digest, size }
}

/// Reports paths that are a file in one overlay and a folder in another: the order of the tar
/// entries would decide.
fn conflicts(input: &RenderInput<'_>, files: &[RenderedFile], faults: &mut Vec<Fault>) {
    let leaves: BTreeMap<&str, &RenderedFile> = files
        .iter()
        .filter(|file| file.kind != Kind::Directory)
        .map(|file| (file.path.relative(), file))
        .collect();
    for below in files {
        for leaf in below.path.parents().filter_map(|parent| leaves.get(parent)) {
            let path = &leaf.path;
            let file_in = leaf.origin();
            let folder_in = below.origin();
            let what = format!(
                "{path} is a file or link in overlay {file_in}, but a folder in overlay {folder_in}"
            );
            faults.push(Fault::of_file(&input.site.overlays_dir, what, "rename one of them"));
        }
    }
}

/// Returns the manifest in the format of sha256sum. It is public, so it omits files with secrets.
fn manifest(files: &[RenderedFile]) -> Bytes {
    let checked = files
        .iter()
        .filter(|file| matches!(file.kind, Kind::File(_) | Kind::Agent | Kind::MeshInit));
    let checked = checked.filter(|file| !EDITED_ON_NODE.contains(&file.path.to_string().as_str()));
    Bytes::from(checked.map(|file| format!("{}  {}\n", file.digest, file.path)).collect::<String>())
}
