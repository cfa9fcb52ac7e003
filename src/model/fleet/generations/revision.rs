//! Revisions of a profile: its contents at one time. A node's own values turn a revision into a generation.

use super::generation::Generation;
use meshd_types::{BundleName, Digest, ImageName, OverlayName, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Revisions that are kept of one profile; the oldest go first, and never the one that it is held at.
pub const MAX_REVISIONS: usize = 8;

/// What a profile was at one time, with all that its nodes share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision<P> {
    /// The profile with everything inherited in it.
    pub profile: P,
    /// The versions of its overlays.
    pub overlays: BTreeMap<OverlayName, Digest>,
    /// The version of its image.
    pub version: Digest,
    /// The layers of its bundles. One without them is as an earlier release wrote it down: its digest stays what it was.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bundles: BTreeMap<BundleName, Digest>,
}

/// A revision in the list of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevisionSummary {
    /// The digest of all of it.
    pub generation: Generation,
    /// Name of the image.
    pub image: ImageName,
    /// The version of the image.
    pub version: Digest,
    /// Since when it was what site file, overlays and images said.
    pub since: Timestamp,
}

/// The revisions of a profile, newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revisions {
    /// All that are kept.
    pub all: Vec<RevisionSummary>,
    /// The one that nodes boot, when it is not what the site file says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Generation>,
}

impl Revisions {
    /// The profile is this now, by the site file. False if it was already.
    pub fn revise(&mut self, revised: RevisionSummary) -> bool {
        if self.all.last().is_some_and(|last| last.generation == revised.generation) {
            return false;
        }
        self.all.retain(|one| one.generation != revised.generation);
        self.all.push(revised);
        while self.all.len() > MAX_REVISIONS {
            let goes = self.all.iter().position(|one| Some(one.generation) != self.held);
            self.all.remove(goes.unwrap_or(0));
        }
        true
    }

    /// What nodes boot.
    pub fn effective(&self) -> Option<Generation> {
        self.held.or_else(|| self.all.last().map(|last| last.generation))
    }

    /// The newest one before what nodes boot.
    pub fn before(&self) -> Option<&RevisionSummary> {
        let now = self.effective()?;
        let at = self.all.iter().position(|one| one.generation == now).unwrap_or(self.all.len());
        self.all[..at].last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revised(number: u8) -> RevisionSummary {
        let (digest, since) = (Digest([number; 32]), Timestamp::from_millis(i64::from(number)));
        RevisionSummary { generation: Generation(digest), image: "i".parse().expect("a name"), version: digest, since }
    }

    #[test]
    fn the_list_is_bounded_and_never_without_the_one_that_is_held() {
        let mut revisions = Revisions::default();
        for number in 0..20 {
            assert!(revisions.revise(revised(number)));
            assert!(!revisions.revise(revised(number)), "it is that already");
            if number == 2 {
                revisions.held = Some(revised(2).generation);
            }
        }
        assert_eq!(revisions.all.len(), MAX_REVISIONS);
        assert_eq!((revisions.effective(), revisions.before()), (Some(revised(2).generation), None));
        revisions.held = None;
        assert_eq!(revisions.before().map(|one| one.generation), Some(revised(18).generation));
    }
}
