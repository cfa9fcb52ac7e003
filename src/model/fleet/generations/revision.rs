//! Revisions of a profile: its contents at one time. A node's own values turn a revision into a
//! generation.

use super::{archive::FileChange, generation::Generation};
use meshd_types::{BundleName, Digest, ImageName, OverlayName, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of revisions of a profile. The oldest are removed first, except the revision in
/// use.
pub const MAX_REVISIONS: usize = 32;

/// A profile at one time, with all contents that its nodes share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision<P> {
    /// The profile with its inherited values.
    pub profile: P,
    /// Versions of its overlays.
    pub overlays: BTreeMap<OverlayName, Digest>,
    /// Version of its image.
    pub version: Digest,
    /// Bundle layers.
    pub bundles: BTreeMap<BundleName, Digest>,
}

/// A revision in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RevisionSummary {
    pub generation: Generation,
    pub image: ImageName,
    /// Version of the image.
    pub version: Digest,
    /// Time of the reload that introduced it.
    pub since: Timestamp,
}

/// Revisions of a profile, newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revisions {
    pub all: Vec<RevisionSummary>,
    /// The revision that nodes boot, if the profile was rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<Generation>,
}

impl Revisions {
    /// Adds the current contents of the profile. Returns false if they are unchanged.
    pub fn revise(&mut self, revised: RevisionSummary) -> bool {
        if self.all.last().is_some_and(|last| last.generation == revised.generation) {
            return false;
        }
        self.all.retain(|one| one.generation != revised.generation);
        self.all.push(revised);
        while self.all.len() > MAX_REVISIONS {
            let goes = self.all.iter().position(|one| Some(one.generation) != self.pinned);
            self.all.remove(goes.unwrap_or(0));
        }
        true
    }

    /// Returns the revision that nodes boot.
    pub fn effective(&self) -> Option<Generation> {
        self.pinned.or_else(|| self.all.last().map(|last| last.generation))
    }

    /// Returns the newest revision before the effective one.
    pub fn before(&self) -> Option<&RevisionSummary> {
        let now = self.effective()?;
        let at = self.all.iter().position(|one| one.generation == now).unwrap_or(self.all.len());
        self.all[..at].last()
    }
}

/// The difference of two revisions of a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RevisionDiff {
    /// Changed settings by their keys in `site.toml`, and versions of images and bundles, before
    /// and after. An empty text means not set.
    pub changed: BTreeMap<String, [String; 2]>,
    /// Changed files of overlays by their paths: `base/overlay.toml`.
    pub files: BTreeMap<String, FileChange>,
}

impl RevisionDiff {
    /// Compares settings and digests of files.
    pub fn new(
        settings: [&BTreeMap<String, String>; 2],
        files: [&BTreeMap<String, Digest>; 2],
    ) -> Self {
        let value =
            |of: &BTreeMap<String, String>, key: &str| of.get(key).cloned().unwrap_or_default();
        let changed = differing(settings)
            .map(|key| (key.clone(), settings.map(|of| value(of, key))))
            .collect();
        let change = |path: &String| match files.map(|of| of.contains_key(path)) {
            [false, _] => FileChange::Added,
            [_, false] => FileChange::Removed,
            _ => FileChange::Changed,
        };
        RevisionDiff {
            changed,
            files: differing(files).map(|path| (path.clone(), change(path))).collect(),
        }
    }
}

/// Returns the keys whose values differ, or that only one map contains.
fn differing<V: PartialEq>(
    [before, after]: [&BTreeMap<String, V>; 2],
) -> impl Iterator<Item = &String> {
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    keys.into_iter().filter(|key| before.get(*key) != after.get(*key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revised(number: u8) -> RevisionSummary {
        let digest = Digest([number; 32]);
        let since = Timestamp::from_millis(i64::from(number));
        RevisionSummary {
            generation: Generation(digest),
            image: "i".parse().expect("a name"),
            version: digest,
            since,
        }
    }

    #[test]
    fn revision_diff_lists_changed_settings_and_files() {
        let texts = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let files = |pairs: &[(&str, u8)]| -> BTreeMap<String, Digest> {
            pairs.iter().map(|(path, fill)| ((*path).to_owned(), Digest([*fill; 32]))).collect()
        };
        let settings = [
            &texts(&[("image", "a"), ("gone", "x"), ("same", "s")]),
            &texts(&[("image", "b"), ("new", "y"), ("same", "s")]),
        ];
        let paths = [
            &files(&[("o/same", 1), ("o/edited", 1), ("o/gone", 1)]),
            &files(&[("o/same", 1), ("o/edited", 2), ("o/new", 1)]),
        ];
        let diff = RevisionDiff::new(settings, paths);
        let changed: Vec<_> = diff
            .changed
            .iter()
            .map(|(key, [before, after])| (key.as_str(), before.as_str(), after.as_str()))
            .collect();
        assert_eq!(changed, [("gone", "x", ""), ("image", "a", "b"), ("new", "", "y")]);
        let signs: Vec<_> =
            diff.files.iter().map(|(path, change)| (path.as_str(), change.sign())).collect();
        assert_eq!(signs, [("o/edited", '~'), ("o/gone", '-'), ("o/new", '+')]);
        assert_eq!(RevisionDiff::new([settings[0]; 2], [paths[0]; 2]), RevisionDiff::default());
    }

    #[test]
    fn revision_list_is_bounded_and_keeps_pinned_revision() {
        let mut revisions = Revisions::default();
        for number in 0..50 {
            assert!(revisions.revise(revised(number)));
            assert!(!revisions.revise(revised(number)), "it is that already");
            if number == 2 {
                revisions.pinned = Some(revised(2).generation);
            }
        }
        assert_eq!(revisions.all.len(), MAX_REVISIONS);
        assert_eq!(
            (revisions.effective(), revisions.before()),
            (Some(revised(2).generation), None)
        );
        revisions.pinned = None;
        assert_eq!(revisions.before().map(|one| one.generation), Some(revised(48).generation));
    }
}
