//! `meshd overlay diff`: prints the difference of two renderings as unified diffs.

use super::comparison_side::Side;
use crate::cli::{Context, Failure, output::print::Output};
use clap::Args;
use meshd_image::overlay::{Kind, RenderedFile};
use serde::Serialize;
use similar::TextDiff;
use std::{collections::BTreeSet, path::PathBuf};

/// Compare nodes, profiles, or a profile with other overlays
// meshd renders a profile for a node if the command names both. Otherwise the command renders the
// profile offline.
#[derive(Debug, Args)]
pub(in crate::cli) struct Diff {
    /// Node ID or name
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Profile
    #[arg(long = "profile", value_name = "P")]
    profiles: Vec<String>,
    /// Folder of other overlays, or an unpacked archive
    #[arg(long, value_name = "DIR", conflicts_with = "nodes")]
    against: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// A file that differs between the two sides.
#[derive(Debug, Serialize)]
struct Change {
    path: String,
    change: Kinds,
    /// Differences of mode, owner and kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    how: Option<String>,
    /// Unified diff; empty if the contents are equal or are not text.
    diff: String,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kinds {
    Added,
    Removed,
    Changed,
}

impl Diff {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let (left, right) = self.sides(context)?;
        for note in
            left.notes.iter().chain(right.notes.iter().filter(|note| !left.notes.contains(note)))
        {
            message!("note: {note}");
        }
        let changes = changes(&left, &right);
        match changes.len() {
            0 => message!("no difference between {} and {}", left.name, right.name),
            1 => message!("1 file differs between {} and {}", left.name, right.name),
            many => message!("{many} files differ between {} and {}", left.name, right.name),
        }
        self.output.print(&changes, |changes| changes.iter().map(text).collect())
    }

    fn sides(&self, context: &Context) -> Result<(Side, Side), Failure> {
        if let (Some(dir), [profile]) = (&self.against, self.profiles.as_slice()) {
            let left = Side::folder(context, profile, dir)?;
            let right = Side::profile(context, profile)?;
            let right = if left.unpacked { right.into_unpacked() } else { right };
            return Ok((left, right));
        }
        let mut sides = Vec::new();
        for node in &self.nodes {
            sides.push(Side::node(context, node)?);
        }
        for profile in &self.profiles {
            sides.push(match self.nodes.as_slice() {
                [node] => Side::node_with(context, node, profile)?,
                _ => Side::profile(context, profile)?,
            });
        }
        let two: Result<[Side; 2], _> = sides.try_into();
        two.map(|[left, right]| (left, right)).map_err(|sides| {
            let hint =
                "write --profile A --profile B, NODE --profile B, or --profile A --against DIR";
            Failure::new(format!("cannot compare {} sides; name two", sides.len()), hint)
        })
    }
}

fn changes(left: &Side, right: &Side) -> Vec<Change> {
    let paths: BTreeSet<_> =
        left.files.iter().chain(&right.files).map(|file| file.path.to_string()).collect();
    let differs = |path: String| {
        // The manifest has a line for each other file and would only repeat their differences.
        if path == "/etc/meshd/manifest.sha256" {
            return None;
        }
        let old = left.file(&path);
        let new = right.file(&path);
        let change = match (old, new) {
            (Some(old), Some(new)) if is_same_file(old, new) => return None,
            (None, _) => Kinds::Added,
            (_, None) => Kinds::Removed,
            _ => Kinds::Changed,
        };
        let how_old = old.map(describe_file);
        let how_new = new.map(describe_file);
        let how = match (how_old, how_new) {
            (Some(old), Some(new)) => (old != new).then(|| format!("{old} -> {new}")),
            (old, new) => old.or(new),
        };
        let diff = unified_diff(&path, old, new);
        Some(Change { path, change, how, diff })
    };
    paths.into_iter().filter_map(differs).collect()
}

fn is_same_file(old: &RenderedFile, new: &RenderedFile) -> bool {
    let bytes = |file: &RenderedFile| match (file.content().cloned(), &file.kind) {
        (Some(bytes), _) => Some(meshd_types::Digest::of(&bytes)),
        (None, Kind::Agent | Kind::MeshInit) => Some(file.digest),
        (None, _) => None,
    };
    describe_file(old) == describe_file(new) && bytes(old) == bytes(new)
}

fn describe_file(file: &RenderedFile) -> String {
    match &file.kind {
        Kind::Link(target) => format!("link to {target}"),
        kind => format!("{kind} {:04o} {}:{}", file.mode, file.owner.0, file.owner.1),
    }
}

fn unified_diff(path: &str, old: Option<&RenderedFile>, new: Option<&RenderedFile>) -> String {
    let text = |file: Option<&RenderedFile>| {
        let bytes = file.and_then(RenderedFile::content).cloned().unwrap_or_default();
        (!bytes.contains(&0)).then(|| String::from_utf8_lossy(&bytes).into_owned())
    };
    let (Some(before), Some(after)) = (text(old), text(new)) else {
        return "binary files differ\n".to_owned();
    };
    let name = |file: Option<&RenderedFile>| {
        if file.is_some() { path.to_owned() } else { "/dev/null".to_owned() }
    };
    TextDiff::from_lines(&before, &after).unified_diff().header(&name(old), &name(new)).to_string()
}

fn text(change: &Change) -> String {
    let word = match change.change {
        Kinds::Added => "added",
        Kinds::Removed => "removed",
        Kinds::Changed => "changed",
    };
    let how = change.how.as_ref().map(|how| format!(": {how}")).unwrap_or_default();
    format!("{word} {}{how}\n{}", change.path, change.diff)
}
