//! Tests whether a machine can boot the result of a merge. Each overlay may be valid alone, and the boot may still lack a part that
//! mesh-init, Alpine's init or OpenRC needs.

use super::{
    RenderInput,
    merge::{Merged, Piece, fault, merge},
};
use crate::catalog::overlay::{AGENT_PATH, Source, SourceLocation};
use meshd_config::Fault;
use meshd_types::SafePath;
use std::fmt::Display;

/// The first program of a node.
const MESH_INIT: &str = "/sbin/mesh-init";
/// Service of the agent.
const AGENT_SERVICE: &str = "mesh-agent";
/// Packages that bring `/sbin/init` and OpenRC.
const INIT_PACKAGES: [&str; 2] = ["alpine-base", "openrc"];
/// Files that mesh-init, the agent and the boot interface need, and whether each is a program.
const NEEDED: [(&str, bool); 5] = [
    ("/etc/init.d/mesh-agent", true),
    ("/etc/meshd/agent.json", false),
    ("/etc/meshd/image.env", false),
    ("/etc/network/interfaces", false),
    ("/usr/share/meshd/udhcpc", true),
];
/// What a file must contain, in a line that is not a comment: init starts OpenRC, and OpenRC the agent and the boot interface.
const NEEDED_LINES: [(&str, &str); 4] = [
    ("/etc/inittab", "openrc sysinit"),
    ("/etc/inittab", "openrc boot"),
    ("/etc/inittab", "openrc default"),
    ("/etc/network/interfaces", "/etc/network/interfaces.d"),
];
/// Folders that stay folders: programs and packages are found below them.
const FOLDERS: [&str; 25] = [
    "bin",
    "etc",
    "etc/apk",
    "etc/init.d",
    "etc/meshd",
    "etc/network",
    "home",
    "lib",
    "lib/modules",
    "media",
    "mnt",
    "opt",
    "opt/bundles",
    "root",
    "sbin",
    "tmp",
    "usr",
    "usr/bin",
    "usr/lib",
    "usr/local",
    "usr/local/bin",
    "usr/sbin",
    "usr/share",
    "var",
    "var/lib",
];
/// Folders that the kernel or OpenRC mounts over: a file below one is never seen.
const MOUNTED: [&str; 4] = ["dev", "proc", "run", "sys"];
/// Links of Alpine's packages. A folder in place of one makes `apk` fail.
const PACKAGE_LINKS: [(&str, &str); 5] = [
    ("var/lock", "run/lock"),
    ("var/run", "run"),
    ("var/spool/cron/crontabs", "etc/crontabs"),
    ("var/spool/mail", "var/mail"),
    ("etc/mtab", "proc/mounts"),
];
/// Programs of packages without which nothing starts.
const PROGRAMS: [&str; 9] = [
    "bin/busybox",
    "bin/sh",
    "sbin/apk",
    "sbin/init",
    "sbin/openrc",
    "sbin/openrc-run",
    "lib/ld-musl-x86_64.so.1",
    "lib/ld-musl-aarch64.so.1",
    "lib/ld-musl-riscv64.so.1",
];
/// Files in which mesh-init locks the root account.
const ACCOUNTS: [&str; 2] = ["etc/passwd", "etc/shadow"];

/// Returns why no machine could boot the merged overlays of a node; empty if one can. Faults of the merge itself are not part of it.
pub fn boot_faults(input: &RenderInput<'_>) -> Vec<Fault> {
    find(input, &merge(input, &mut Vec::new()))
}

pub(super) fn find(input: &RenderInput<'_>, merged: &Merged<'_>) -> Vec<Fault> {
    let check = Check { input, merged };
    let Some(agent) = check.piece(AGENT_PATH).filter(|piece| piece.entry.source == Source::Agent) else {
        return vec![check.absent(AGENT_PATH, "the agent")];
    };
    let mut faults: Vec<Fault> = check.mesh_init(agent.layer).into_iter().collect();
    faults.extend(NEEDED.iter().filter_map(|(path, is_program)| check.needed(path, *is_program)));
    faults.extend(check.services());
    faults.extend(NEEDED_LINES.iter().filter_map(|(path, line)| check.needed_line(path, line)));
    faults.extend(check.merged.paths.iter().filter_map(|(path, pieces)| check.misplaced(path, pieces.first()?)));
    faults
}

struct Check<'a, 'i> {
    input: &'a RenderInput<'i>,
    merged: &'a Merged<'i>,
}

impl<'i> Check<'_, 'i> {
    fn piece(&self, path: &str) -> Option<Piece<'i>> {
        self.merged.paths.iter().find(|(at, _)| at.to_string() == path).and_then(|(_, pieces)| pieces.first().copied())
    }

    /// A fault of an overlay, which names the profile.
    fn at(&self, piece: &Piece<'_>, what: impl Display, hint: impl Into<String>) -> Fault {
        let what = format!("profile {} would not boot: {what}", self.input.profile.name);
        fault(self.merged.layers[piece.layer], &piece.entry.location, what, hint)
    }

    /// A fault of a missing part: of the overlay that removes it, else of the profile.
    fn absent(&self, path: &str, what: &str) -> Fault {
        let message = format!("profile {} would not boot: no overlay brings {what} ({path})", self.input.profile.name);
        let removes = |removed: &SafePath| {
            path.strip_prefix(&removed.to_string()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let found = self.merged.layers.iter().rev().find_map(|overlay| {
            let line = overlay.removed.iter().find(|(removed, _)| removes(removed)).map(|(_, line)| *line)?;
            let location = SourceLocation { file: "overlay.toml".into(), line };
            Some(fault(overlay, &location, message.clone(), "take it out of `remove`: every node needs it"))
        });
        let hint = "begin the list with overlays = [\"base\", \"agent\"], or extend a profile that has both";
        found.unwrap_or_else(|| Fault::of_file(&self.input.site.file, message, hint))
    }

    fn mesh_init(&self, agent_layer: usize) -> Option<Fault> {
        let Some(piece) = self.piece(MESH_INIT) else { return Some(self.absent(MESH_INIT, "mesh-init")) };
        let is_whole = self.merged.paths.iter().any(|(path, all)| path.to_string() == MESH_INIT && all.len() == 1);
        if piece.layer != agent_layer || !is_whole {
            let owner = &self.merged.layers[piece.layer].name;
            let what = format!("{MESH_INIT} is changed by overlay {owner}, which does not bring the agent");
            return Some(self.at(&piece, what, "change it in the overlay that brings the agent"));
        }
        self.needed(MESH_INIT, true)
    }

    /// A file that must be there, as a file, and executable if it is a program.
    fn needed(&self, path: &str, is_program: bool) -> Option<Fault> {
        let Some(piece) = self.piece(path) else { return Some(self.absent(path, "this file")) };
        if !matches!(piece.entry.source, Source::File(_) | Source::Template { .. }) {
            return Some(self.at(&piece, format!("{path} is not a file"), "bring a file at this path"));
        }
        if is_program && piece.entry.mode & 0o111 == 0 {
            let what = format!("{path} is not executable: its mode is {:04o}", piece.entry.mode);
            return Some(self.at(&piece, what, format!("write [files.\"{path}\"] mode = \"0755\"")));
        }
        if is_program && matches!(&piece.entry.source, Source::File(bytes) if !is_program_file(bytes)) {
            let what = format!("{path} is no program: it begins with neither `#!` nor ELF");
            return Some(self.at(
                &piece,
                what,
                "write the interpreter into the first line, such as `#!/sbin/openrc-run`",
            ));
        }
        None
    }

    /// A line without which nothing of meshd starts, in a file that the merge has. A template is not known before it is rendered.
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
        Some(self.at(pieces.first()?, what, "begin with the file of the overlay base, and append to it"))
    }

    fn services(&self) -> Option<Fault> {
        let name = &self.input.profile.name;
        let of_profile = |what: &str, hint: &str| {
            Some(Fault::of_file(&self.input.site.file, format!("profile {name} would not boot: {what}"), hint))
        };
        if !INIT_PACKAGES.iter().any(|package| self.merged.packages.contains(package)) {
            return of_profile("no overlay brings the package alpine-base", "begin the list of overlays with \"base\"");
        }
        if !self.merged.services.contains_key(AGENT_SERVICE) {
            let removed = self.merged.layers.iter().find_map(|overlay| {
                let line = *overlay.services.removed.get(AGENT_SERVICE)?;
                let what = format!("profile {name} would not boot: the service {AGENT_SERVICE} is removed");
                let location = SourceLocation { file: "overlay.toml".into(), line };
                Some(fault(overlay, &location, what, "take it out of `remove`: every node needs it"))
            });
            let hint = "write default = [\"mesh-agent\"] under [services] of the overlay that brings the agent";
            return removed.or_else(|| of_profile("no overlay enables the service mesh-agent", hint));
        }
        None
    }

    /// An entry at a place that the boot needs for itself.
    fn misplaced(&self, path: &SafePath, piece: &Piece<'_>) -> Option<Fault> {
        let relative = path.relative();
        let within = |top: &str| relative == top || path.parents().any(|parent| parent == top);
        if let Some(top) = MOUNTED.iter().find(|top| within(top)) {
            let what = format!("{path} is below /{top}, which is mounted over");
            return Some(self.at(piece, what, "make it when its service starts"));
        }
        if let Some((link, target)) = PACKAGE_LINKS.iter().find(|(link, _)| within(link)) {
            let what = format!("{path} is at or below /{link}, a link to /{target} that a package brings");
            return Some(self.at(piece, what, format!("make it below /{target}, when its service starts")));
        }
        let is_folder = piece.entry.source == Source::Directory;
        if FOLDERS.contains(&relative) && !is_folder {
            return Some(self.at(piece, format!("{path} must be a folder"), "use another path"));
        }
        if PROGRAMS.contains(&relative) {
            return Some(self.at(piece, format!("{path} replaces a program of the system"), "use another path"));
        }
        if ACCOUNTS.contains(&relative) && !has_root(&piece.entry.source) {
            return Some(self.at(piece, format!("{path} has no line of root"), "add the line of root"));
        }
        None
    }
}

fn is_program_file(bytes: &[u8]) -> bool {
    bytes.starts_with(b"#!") || bytes.starts_with(b"\x7fELF")
}

/// Returns whether an account file has a line of root. A template is not known before it is rendered.
fn has_root(source: &Source) -> bool {
    match source {
        Source::File(bytes) => bytes.split(|c| *c == b'\n').any(|line| line.starts_with(b"root:")),
        Source::Template { .. } => true,
        Source::Agent | Source::Link(_) | Source::Directory => false,
    }
}

#[cfg(test)]
mod tests;
