//! Tests whether a machine can boot the result of a merge. Each overlay may be valid alone, and the
//! boot may still lack a part that the first program, the init or the service manager of its image
//! needs.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `requirements` | the type of what a system needs |
//! | `alpine` | what a node with Alpine and OpenRC needs |
//! | `systemd` | what a node with systemd needs |

mod alpine;
mod requirements;
mod systemd;

use super::{
    RenderInput,
    merge::{Merged, Piece, fault, merge},
};
use crate::catalog::overlay::{AGENT_PATH, Source, SourceLocation, System};
use meshd_config::{Delivery, Fault};
use meshd_model::image_kind::ImageKindName;
use meshd_types::{Architecture, SafePath};
use requirements::Requirements;
use std::fmt::Display;

/// Service of the agent, and its unit.
const AGENT_SERVICE: &str = "mesh-agent";
const AGENT_UNIT: &str = "mesh-agent.service";

fn requirements(system: System) -> &'static Requirements {
    match system {
        System::Alpine => &alpine::REQUIREMENTS,
        System::Systemd => &systemd::REQUIREMENTS,
    }
}

/// Returns why no machine could boot the merged overlays of a node; empty if one can. Faults of the
/// merge itself are not part of it.
pub fn boot_faults(input: &RenderInput<'_>) -> Vec<Fault> {
    find(input, &merge(input, &mut Vec::new()))
}

pub(super) fn find(input: &RenderInput<'_>, merged: &Merged<'_>) -> Vec<Fault> {
    let check = Check { input, merged, requirements: requirements(input.image.system) };
    if check.piece(AGENT_PATH).is_none_or(|piece| piece.entry.source != Source::Agent) {
        return vec![check.absent(AGENT_PATH, "the agent")];
    }
    let mut faults: Vec<Fault> = check.stage1().into_iter().collect();
    faults.extend(
        check
            .requirements
            .needed
            .iter()
            .filter_map(|(path, is_program)| check.needed(path, *is_program)),
    );
    faults.extend(check.services());
    faults.extend(
        check
            .requirements
            .needed_lines
            .iter()
            .filter_map(|(path, line)| check.needed_line(path, line)),
    );
    faults.extend(
        check
            .merged
            .paths
            .iter()
            .filter_map(|(path, pieces)| check.misplaced(path, pieces.first()?)),
    );
    faults
}

struct Check<'a, 'i> {
    input: &'a RenderInput<'i>,
    merged: &'a Merged<'i>,
    requirements: &'static Requirements,
}

impl<'i> Check<'_, 'i> {
    fn piece(&self, path: &str) -> Option<Piece<'i>> {
        self.merged
            .paths
            .iter()
            .find(|(at, _)| at.to_string() == path)
            .and_then(|(_, pieces)| pieces.first().copied())
    }

    /// A fault of an overlay, which names the profile.
    fn at(&self, piece: &Piece<'_>, what: impl Display, hint: impl Into<String>) -> Fault {
        let what = format!("profile {} would not boot: {what}", self.input.profile.name);
        fault(self.merged.layers[piece.layer], &piece.entry.location, what, hint)
    }

    /// A fault of a missing part: of the overlay that removes it, else of the profile.
    fn absent(&self, path: &str, what: &str) -> Fault {
        let message = format!(
            "profile {} would not boot: no overlay brings {what} ({path})",
            self.input.profile.name
        );
        let removes = |removed: &SafePath| {
            path.strip_prefix(&removed.to_string())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let found = self.merged.layers.iter().rev().find_map(|overlay| {
            let line = overlay
                .removed
                .iter()
                .find(|(removed, _)| removes(removed))
                .map(|(_, line)| *line)?;
            let location = SourceLocation { file: "overlay.toml".into(), line };
            Some(fault(
                overlay,
                &location,
                message.clone(),
                "take it out of `remove`: every node needs it",
            ))
        });
        let hint = self.requirements.absent_hint;
        found.unwrap_or_else(|| Fault::of_file(&self.input.site.file, message, hint))
    }

    /// What stage 1 of an image of kind `root` needs.
    fn stage1(&self) -> Option<Fault> {
        let RenderInput { site, image, profile, .. } = self.input;
        if image.kind != ImageKindName::Root {
            let what = format!(
                "profile {}: root_mode = \"{}\" needs an image of kind root, and {} is none",
                profile.name, profile.root_mode, image.name
            );
            let hint = "remove root_mode, or choose an image of kind root";
            return (!profile.root_mode.is_ram()).then(|| Fault::of_file(&site.file, what, hint));
        }
        let fault = |what: &str, hint: &str| {
            let what = format!("profile {} would not boot: {what}", profile.name);
            Some(Fault::of_file(&site.file, what, hint))
        };
        if site.boot.delivery == Delivery::Url {
            let what = format!("image {} of kind root needs the overlay as an initrd", image.name);
            return fault(&what, "write [boot].delivery = \"initrd\"");
        }
        if !profile.bundles.is_empty() {
            let what = format!("stage 1 of image {} mounts no bundles yet", image.name);
            return fault(&what, "remove the bundles from the profile");
        }
        if image.stage1.is_none() {
            let what = "stage 1 is missing or not a static program beside the agent";
            return fault(what, "run `make build`, or set [agent].binary to a file beside stage1");
        }
        None
    }

    /// A file that must be there, as a file, and executable if it is a program.
    fn needed(&self, path: &str, is_program: bool) -> Option<Fault> {
        let Some(piece) = self.piece(path) else { return Some(self.absent(path, "this file")) };
        if !matches!(piece.entry.source, Source::File(_) | Source::Template { .. }) {
            return Some(self.at(
                &piece,
                format!("{path} is not a file"),
                "bring a file at this path",
            ));
        }
        if is_program && piece.entry.mode & 0o111 == 0 {
            let what = format!("{path} is not executable: its mode is {:04o}", piece.entry.mode);
            return Some(self.at(
                &piece,
                what,
                format!("write [files.\"{path}\"] mode = \"0755\""),
            ));
        }
        if is_program
            && matches!(&piece.entry.source, Source::File(bytes) if !is_program_file(bytes))
        {
            let what = format!("{path} is no program: it begins with neither `#!` nor ELF");
            return Some(self.at(
                &piece,
                what,
                "write the interpreter into the first line, such as `#!/sbin/openrc-run`",
            ));
        }
        None
    }

    /// A line without which nothing of meshd starts, in a file that the merge has. A template is
    /// not known before it is rendered.
    fn needed_line(&self, path: &str, needed: &str) -> Option<Fault> {
        let (_, pieces) = self.merged.paths.iter().find(|(at, _)| at.to_string() == path)?;
        let has_line = |piece: &Piece<'_>| match &piece.entry.source {
            Source::File(bytes) => String::from_utf8_lossy(bytes)
                .lines()
                .any(|line| !line.trim_start().starts_with('#') && line.contains(needed)),
            _ => true,
        };
        if pieces.iter().any(has_line) {
            return None;
        }
        let what = format!("{path} has no line with `{needed}`");
        Some(self.at(
            pieces.first()?,
            what,
            "begin with the file of the overlay base, and append to it",
        ))
    }

    fn services(&self) -> Option<Fault> {
        let name = &self.input.profile.name;
        let of_profile = |what: &str, hint: &str| {
            Some(Fault::of_file(
                &self.input.site.file,
                format!("profile {name} would not boot: {what}"),
                hint,
            ))
        };
        let init = self.requirements.init_packages;
        let has_init = init.iter().any(|package| self.merged.packages.contains(package));
        if !init.is_empty() && !has_init {
            return of_profile(
                "no overlay brings the package alpine-base",
                "begin the list of overlays with \"base\"",
            );
        }
        if self.input.image.system == System::Systemd {
            let hint = "write units = [\"mesh-agent.service\"] under [systemd] of the overlay that brings the agent";
            let is_enabled = self.merged.units.contains_key(AGENT_UNIT);
            return if is_enabled {
                None
            } else {
                of_profile("no overlay enables the unit mesh-agent.service", hint)
            };
        }
        if !self.merged.services.contains_key(AGENT_SERVICE) {
            let removed = self.merged.layers.iter().find_map(|overlay| {
                let line = *overlay.services.removed.get(AGENT_SERVICE)?;
                let what = format!(
                    "profile {name} would not boot: the service {AGENT_SERVICE} is removed"
                );
                let location = SourceLocation { file: "overlay.toml".into(), line };
                Some(fault(
                    overlay,
                    &location,
                    what,
                    "take it out of `remove`: every node needs it",
                ))
            });
            let hint = "write default = [\"mesh-agent\"] under [services] of the overlay that brings the agent";
            return removed
                .or_else(|| of_profile("no overlay enables the service mesh-agent", hint));
        }
        None
    }

    /// An entry at a place that the boot needs for itself.
    fn misplaced(&self, path: &SafePath, piece: &Piece<'_>) -> Option<Fault> {
        let relative = path.relative();
        let within = |top: &str| relative == top || path.parents().any(|parent| parent == top);
        if let Some(top) = self.requirements.mounted.iter().find(|top| within(top)) {
            let what = format!("{path} is below /{top}, which is mounted over");
            return Some(self.at(piece, what, "make it when its service starts"));
        }
        if let Some((link, target)) =
            self.requirements.package_links.iter().find(|(link, _)| within(link))
        {
            let what =
                format!("{path} is at or below /{link}, a link to /{target} that a package brings");
            return Some(self.at(
                piece,
                what,
                format!("make it below /{target}, when its service starts"),
            ));
        }
        let is_folder = piece.entry.source == Source::Directory;
        if self.requirements.folders.contains(&relative) && !is_folder {
            return Some(self.at(piece, format!("{path} must be a folder"), "use another path"));
        }
        let is_loader = Architecture::ALL
            .iter()
            .any(|architecture| architecture.facts().musl_loader == relative);
        if is_loader || self.requirements.programs.contains(&relative) {
            return Some(self.at(
                piece,
                format!("{path} replaces a program of the system"),
                "use another path",
            ));
        }
        if self.requirements.accounts.contains(&relative) && !has_root(&piece.entry.source) {
            return Some(self.at(
                piece,
                format!("{path} has no line of root"),
                "add the line of root",
            ));
        }
        None
    }
}

fn is_program_file(bytes: &[u8]) -> bool {
    bytes.starts_with(b"#!") || bytes.starts_with(b"\x7fELF")
}

/// Returns whether an account file has a line of root. A template is not known before it is
/// rendered.
fn has_root(source: &Source) -> bool {
    match source {
        Source::File(bytes) => bytes.split(|c| *c == b'\n').any(|line| line.starts_with(b"root:")),
        Source::Template { .. } => true,
        Source::Agent | Source::Link(_) | Source::Directory => false,
    }
}

#[cfg(test)]
mod tests;
