//! One side of a comparison: a node, a profile, or a profile rendered with other overlays.

use super::{of_node, render::Renderer};
use crate::cli::{Context, Failure, overlay::render::overlays, profile};
use meshd_config::files::read_regular;
use meshd_image::{
    catalog::overlay::read_overlays,
    overlay::{Kind, RenderedFile, read_targz},
};
use meshd_types::{Digest, SafePath};
use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path};

/// Maximum size of one unpacked file, in bytes: the agent is the largest.
const MAX_UNPACKED: u64 = 64 << 20;

/// The files of one rendering, sorted by path.
pub(super) struct Side {
    /// Description for the output.
    pub(super) name: String,
    pub(super) files: Vec<RenderedFile>,
    pub(super) notes: Vec<String>,
    /// True for files from a folder. A folder does not record the owners and folders of the
    /// overlay.
    pub(super) unpacked: bool,
}

impl Side {
    /// Returns the current overlay of a node, rendered by meshd.
    pub(super) fn node(context: &Context, node: &str) -> Result<Self, Failure> {
        Self::of_meshd(context, node, None)
    }

    /// Returns the overlay of a node, rendered by meshd with another profile.
    pub(super) fn node_with(context: &Context, node: &str, profile: &str) -> Result<Self, Failure> {
        Self::of_meshd(context, node, Some(profile))
    }

    fn of_meshd(context: &Context, node: &str, profile: Option<&str>) -> Result<Self, Failure> {
        let (bytes, generation) = of_node(context, node, profile)?;
        let files = read_targz(&bytes).map_err(|error| {
            Failure::new(
                format!("the overlay of {node} cannot be read: {error}"),
                "is meshd of the same version?",
            )
        })?;
        let generation: String = generation.chars().take(12).collect();
        let with = profile.map(|profile| format!(" with profile {profile}")).unwrap_or_default();
        Ok(Side {
            name: format!("node {node}{with}, generation {generation}"),
            files,
            notes: Vec::new(),
            unpacked: false,
        })
    }

    /// Renders the overlay of a profile offline.
    pub(super) fn profile(context: &Context, name: &str) -> Result<Self, Failure> {
        Self::rendered(context, name, None)
    }

    /// Reads a folder. The folder contains either overlays for rendering the profile, or an
    /// unpacked overlay archive.
    pub(super) fn folder(context: &Context, name: &str, folder: &Path) -> Result<Self, Failure> {
        let listing = fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
        let holds_overlays =
            listing.flatten().any(|entry| entry.path().join("overlay.toml").is_file());
        if holds_overlays {
            return Self::with_overlays(context, name, folder);
        }
        let mut files = Vec::new();
        unpacked(folder, folder, &mut files).map_err(|error| unreadable(folder, &error))?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Side { name: folder.display().to_string(), files, notes: Vec::new(), unpacked: true })
    }

    fn with_overlays(context: &Context, name: &str, overlays_dir: &Path) -> Result<Self, Failure> {
        Self::rendered(context, name, Some(overlays_dir))
    }

    fn rendered(
        context: &Context,
        name: &str,
        overlays_dir: Option<&Path>,
    ) -> Result<Self, Failure> {
        let site = context.site()?;
        let mut overlays = match overlays_dir {
            Some(dir) => read_overlays(dir)?,
            None => overlays(&site)?,
        };
        super::render::add_secrets(&mut overlays, &site);
        let profile = profile::find(&site, name)?;
        let mut renderer = Renderer::new(&site, overlays).with_programs();
        let files = renderer.render(profile, None)?.files;
        let with = overlays_dir.map(|dir| format!(" with {}", dir.display())).unwrap_or_default();
        Ok(Side {
            name: format!("profile {}{with}", profile.name),
            files,
            notes: renderer.notes,
            unpacked: false,
        })
    }

    /// Removes folders and sets all owners to root, as in an unpacked archive.
    pub(super) fn into_unpacked(mut self) -> Self {
        self.files.retain(|file| file.kind != Kind::Directory);
        self.files.iter_mut().for_each(|file| file.owner = (0, 0));
        self
    }

    pub(super) fn file(&self, path: &str) -> Option<&RenderedFile> {
        self.files.iter().find(|file| file.path.to_string() == path)
    }
}

fn unreadable(folder: &Path, error: &io::Error) -> Failure {
    Failure::new(
        format!("cannot read {}: {error}", folder.display()),
        "name a folder of overlays, or an unpacked archive",
    )
}

/// Adds the files and links of an unpacked archive.
fn unpacked(root: &Path, folder: &Path, files: &mut Vec<RenderedFile>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        if metadata.is_dir() {
            unpacked(root, &path, files)?;
            continue;
        }
        let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        let at = SafePath::new(&relative).map_err(io::Error::other)?;
        let kind = if metadata.is_symlink() {
            Kind::Link(fs::read_link(&path)?.to_string_lossy().into_owned())
        } else {
            Kind::File(read_regular(&path, MAX_UNPACKED)?.into())
        };
        let digest = match &kind {
            Kind::File(bytes) => Digest::of(bytes),
            _ => Digest::of(b""),
        };
        let mode = metadata.permissions().mode() & 0o7777;
        files.push(RenderedFile {
            path: at,
            kind,
            mode,
            owner: (0, 0),
            origins: Vec::new(),
            digest,
            size: metadata.len(),
        });
    }
    Ok(())
}
