//! Archived generations: all public contents, with files by digest. Computes the difference of two
//! generations.

use meshd_proto::{stage1::RootMode, vm::ByteSize};
use meshd_types::{Digest, ImageName, ProfileName, SafePath};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Format version of archived generations.
pub const ARCHIVE_FORMAT: u16 = 1;

/// All data that determines one boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchivedGeneration {
    /// [`ARCHIVE_FORMAT`].
    pub format: u16,
    pub profile: ProfileName,
    pub image: ImageName,
    /// Version of the image.
    pub version: Digest,
    /// Kernel arguments, except those that every boot has.
    pub args: Vec<String>,
    /// Size of the writable layer over a root; `None` for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writable: Option<ByteSize>,
    /// Where the node keeps a root.
    #[serde(default, skip_serializing_if = "RootMode::is_ram")]
    pub root_mode: RootMode,
    /// Stage 1 of a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage1: Option<Digest>,
    pub packages: Vec<String>,
    /// Digest of the public overlay.
    pub overlay: Digest,
    /// Files of the overlay, by path.
    pub files: Vec<ArchivedFile>,
}

/// A file, link or folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchivedFile {
    /// Path on the node.
    pub path: SafePath,
    pub kind: ArchivedKind,
    /// Permission bits.
    pub mode: u32,
    /// User and group ID.
    pub owner: (u64, u64),
    /// Overlay that provides it.
    pub origin: String,
    /// Digest of the content or link target.
    pub digest: Digest,
    /// Size of the content in bytes.
    pub size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArchivedKind {
    /// A file whose content is stored by its digest.
    File,
    /// A file with secrets: the content is not stored, so it cannot be restored.
    Secret,
    /// A symbolic link; its target is stored as content.
    Link,
    Directory,
}

/// The difference of two generations or profiles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GenerationDiff {
    /// Profile, image and version, if they differ: before and after.
    pub changed: BTreeMap<String, [String; 2]>,
    /// Removed kernel arguments.
    pub args_removed: Vec<String>,
    /// Added kernel arguments.
    pub args_added: Vec<String>,
    pub packages_removed: Vec<String>,
    pub packages_added: Vec<String>,
    /// Changed files, by path.
    pub files: Vec<FileDiff>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FileDiff {
    /// Path on the node.
    pub path: SafePath,
    pub change: FileChange,
    /// Changed attributes in this order: `content`, `mode`, `owner`, `kind`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<String>,
    /// Overlay that provides it now, or provided it before.
    pub origin: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileChange {
    Added,
    Removed,
    Changed,
}

impl FileChange {
    /// Returns the sign in a diff.
    pub fn sign(self) -> char {
        match self {
            FileChange::Added => '+',
            FileChange::Removed => '-',
            FileChange::Changed => '~',
        }
    }
}

impl ArchivedKind {
    /// Returns the word that is part of the overlay's digest.
    pub fn word(self) -> &'static str {
        match self {
            ArchivedKind::File | ArchivedKind::Secret => "file",
            ArchivedKind::Link => "link",
            ArchivedKind::Directory => "directory",
        }
    }
}

impl fmt::Display for FileDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.change.sign(), self.path)
    }
}

impl ArchivedGeneration {
    /// Returns the digests of contents that must be archived.
    pub fn contents(&self) -> impl Iterator<Item = Digest> {
        let has =
            |file: &&ArchivedFile| matches!(file.kind, ArchivedKind::File | ArchivedKind::Link);
        self.files.iter().filter(has).map(|file| file.digest).chain(self.stage1)
    }

    /// Compares with a later generation.
    pub fn diff(&self, after: &ArchivedGeneration) -> GenerationDiff {
        let mut changed = BTreeMap::new();
        let mut compare = |key: &str, before: String, after: String| {
            if before != after {
                changed.insert(key.to_owned(), [before, after]);
            }
        };
        compare("profile", self.profile.to_string(), after.profile.to_string());
        compare("image", self.image.to_string(), after.image.to_string());
        compare("image version", self.version.short(), after.version.short());
        let size = |of: &Self| of.writable.map_or("default".to_owned(), |size| size.to_string());
        compare("writable", size(self), size(after));
        compare("root_mode", self.root_mode.to_string(), after.root_mode.to_string());
        let stage1 = |of: &Self| of.stage1.map_or("none".to_owned(), |digest| digest.short());
        compare("stage 1", stage1(self), stage1(after));
        let only = |these: &[String], others: &[String]| -> Vec<String> {
            these.iter().filter(|one| !others.contains(one)).cloned().collect()
        };
        GenerationDiff {
            changed,
            args_removed: only(&self.args, &after.args),
            args_added: only(&after.args, &self.args),
            packages_removed: only(&self.packages, &after.packages),
            packages_added: only(&after.packages, &self.packages),
            files: files(&self.files, &after.files),
        }
    }
}

impl GenerationDiff {
    /// Returns true if nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == GenerationDiff::default()
    }
}

fn files(before: &[ArchivedFile], after: &[ArchivedFile]) -> Vec<FileDiff> {
    let by_path = |files: &'_ [ArchivedFile]| -> BTreeMap<SafePath, ArchivedFile> {
        files.iter().map(|file| (file.path.clone(), file.clone())).collect()
    };
    let before = by_path(before);
    let after = by_path(after);
    let paths: BTreeSet<&SafePath> = before.keys().chain(after.keys()).collect();
    let one = |path: &SafePath| {
        let diff = |change, attributes, file: &ArchivedFile| {
            Some(FileDiff { path: path.clone(), change, attributes, origin: file.origin.clone() })
        };
        match (before.get(path), after.get(path)) {
            (Some(old), None) => diff(FileChange::Removed, Vec::new(), old),
            (None, Some(new)) => diff(FileChange::Added, Vec::new(), new),
            (Some(old), Some(new)) => {
                let parts = [
                    ("content", old.digest != new.digest),
                    ("mode", old.mode != new.mode),
                    ("owner", old.owner != new.owner),
                    ("kind", old.kind != new.kind),
                ];
                let what: Vec<String> = parts
                    .into_iter()
                    .filter(|(_, differs)| *differs)
                    .map(|(what, _)| what.to_owned())
                    .collect();
                if what.is_empty() { None } else { diff(FileChange::Changed, what, new) }
            }
            (None, None) => None,
        }
    };
    paths.into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archived(args: &[&str], files: &[(&str, u8, u32)]) -> ArchivedGeneration {
        let file = |(path, content, mode): &(&str, u8, u32)| ArchivedFile {
            path: SafePath::new(path).expect("plain"),
            kind: ArchivedKind::File,
            mode: *mode,
            owner: (0, 0),
            origin: "base".into(),
            digest: Digest([*content; 32]),
            size: 1,
        };
        ArchivedGeneration {
            format: ARCHIVE_FORMAT,
            profile: "p".parse().expect("a name"),
            image: "i".parse().expect("a name"),
            version: Digest([1; 32]),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            writable: None,
            root_mode: RootMode::Ram,
            stage1: None,
            packages: Vec::new(),
            overlay: Digest([2; 32]),
            files: files.iter().map(file).collect(),
        }
    }

    #[test]
    fn generation_diff_lists_exactly_the_changed_files_and_arguments() {
        let before = archived(
            &["quiet", "a=1"],
            &[("/same", 1, 0o644), ("/gone", 2, 0o644), ("/edit", 3, 0o644)],
        );
        let after = archived(
            &["a=1", "debug"],
            &[("/same", 1, 0o644), ("/edit", 4, 0o600), ("/new", 5, 0o644)],
        );
        let diff = before.diff(&after);
        let lines: Vec<String> =
            diff.files.iter().map(|file| format!("{file} {}", file.attributes.join(" "))).collect();
        assert_eq!(lines, ["~ /edit content mode", "- /gone ", "+ /new "]);
        assert_eq!(
            (diff.args_removed.join(" "), diff.args_added.join(" ")),
            ("quiet".into(), "debug".into())
        );
        assert!(before.diff(&before).is_empty() && !diff.is_empty());
    }
}
