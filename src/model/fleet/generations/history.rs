//! Generations that a node received and reported. Bounded; the running generation always stays.

use super::generation::Generation;
use meshd_types::{Digest, ImageName, ProfileName, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Maximum number of generations listed for a node.
pub const MAX_HISTORY: usize = 16;
/// Number of newest generations that are archived with all files, in addition to the running and
/// the pinned generation.
pub const ARCHIVED_PER_NODE: usize = 4;

/// A generation of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DeliveredGeneration {
    pub generation: Generation,
    pub profile: ProfileName,
    pub image: ImageName,
    /// Version of the image.
    pub version: Digest,
    /// Bundle layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Digest>,
    /// The generation of the profile from which it was rendered for a pin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Generation>,
    /// Time at which the node first fetched the overlay, or was pinned to it.
    pub delivered_at: Timestamp,
    /// Time at which the agent first reported the generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted_at: Option<Timestamp>,
    /// Last fetch or report.
    pub last_at: Timestamp,
}

/// The generations of a node, ordered by delivery of the overlay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct History(pub Vec<DeliveredGeneration>);

impl History {
    /// Records that the node fetched an overlay. Generations in `protected` are never removed.
    pub fn record_delivery(&mut self, delivered: DeliveredGeneration, protected: &[Generation]) {
        let earlier = self.find(delivered.generation).map(|at| self.0.remove(at));
        let earlier = earlier.map_or(delivered.clone(), |earlier| DeliveredGeneration {
            last_at: delivered.last_at,
            revision: delivered.revision.or(earlier.revision),
            ..earlier
        });
        self.0.push(earlier);
        while self.0.len() > MAX_HISTORY {
            let oldest = self.0.iter().position(|one| {
                one.generation != delivered.generation && !protected.contains(&one.generation)
            });
            self.0.remove(oldest.unwrap_or(0));
        }
    }

    /// Records that the agent reports a generation. Returns false if it was never delivered.
    pub fn record_boot(&mut self, generation: Generation, now: Timestamp) -> bool {
        let Some(at) = self.find(generation) else { return false };
        self.0[at].booted_at.get_or_insert(now);
        self.0[at].last_at = now;
        true
    }

    /// Finds a generation.
    pub fn get(&self, generation: Generation) -> Option<&DeliveredGeneration> {
        self.find(generation).map(|at| &self.0[at])
    }

    /// Finds the newest generation that was rendered from a generation of a profile.
    pub fn of_revision(&self, revision: Generation) -> Option<&DeliveredGeneration> {
        self.0.iter().rev().find(|delivered| delivered.revision == Some(revision))
    }

    /// Finds a generation by a prefix of its digest, among `revisions` of the node's profile and
    /// those of the node; `None` if none or several match. One of a profile stands for those that
    /// were rendered from it.
    pub fn find_by_prefix(
        &self,
        revisions: impl Iterator<Item = Generation>,
        prefix: &str,
    ) -> Option<Generation> {
        let matches = |one: &Generation| one.to_string().starts_with(prefix);
        let mut found: BTreeSet<Generation> = revisions.filter(matches).collect();
        let own = self.0.iter().filter(|one| matches(&one.generation));
        let is_of = |of: &BTreeSet<Generation>, one: &DeliveredGeneration| {
            one.revision.is_some_and(|revision| of.contains(&revision))
        };
        let own: Vec<Generation> =
            own.filter(|one| !is_of(&found, one)).map(|one| one.generation).collect();
        found.extend(own);
        found.pop_first().filter(|_| found.is_empty() && !prefix.is_empty())
    }

    /// Returns the newest generations that are archived.
    pub fn newest(&self) -> impl Iterator<Item = Generation> {
        self.0.iter().rev().take(ARCHIVED_PER_NODE).map(|delivered| delivered.generation)
    }

    fn find(&self, generation: Generation) -> Option<usize> {
        self.0.iter().position(|delivered| delivered.generation == generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(number: u8) -> Generation {
        Generation(Digest([number; 32]))
    }

    fn delivered(number: u8, at: i64) -> DeliveredGeneration {
        let delivered_at = Timestamp::from_millis(at);
        let last_at = Timestamp::from_millis(at);
        let profile = "p".parse().expect("a name");
        let image = "i".parse().expect("a name");
        let generation = generation(number);
        let version = Digest([number; 32]);
        let layers = Vec::new();
        let booted_at = None;
        DeliveredGeneration {
            generation,
            profile,
            image,
            version,
            layers,
            revision: None,
            delivered_at,
            booted_at,
            last_at,
        }
    }

    #[test]
    fn running_generation_is_never_removed() {
        let mut history = History::default();
        for number in 0..100 {
            history.record_delivery(delivered(number, i64::from(number)), &[generation(3)]);
        }
        assert_eq!(history.0.len(), MAX_HISTORY);
        assert!(history.get(generation(3)).is_some());
        assert_eq!(history.newest().collect::<Vec<_>>(), [99, 98, 97, 96].map(generation));
    }

    #[test]
    fn repeated_generation_is_the_newest_and_keeps_its_first_boot() {
        let mut history = History::default();
        history.record_delivery(delivered(1, 1), &[]);
        assert!(history.record_boot(generation(1), Timestamp::from_millis(2)));
        history.record_delivery(delivered(2, 3), &[]);
        history.record_delivery(delivered(1, 4), &[]);
        assert!(history.record_boot(generation(1), Timestamp::from_millis(5)));
        let last = history.0.last().expect("two deliveries");
        assert_eq!(
            (
                last.generation,
                last.delivered_at.millis(),
                last.booted_at.map(Timestamp::millis),
                last.last_at.millis()
            ),
            (generation(1), 1, Some(2), 5)
        );
        assert!(!history.record_boot(generation(7), Timestamp::from_millis(6)), "never delivered");
    }

    #[test]
    fn generation_keeps_the_revision_that_a_pin_rendered() {
        let mut history = History::default();
        for number in [1, 2] {
            let revision = Some(generation(9));
            history.record_delivery(DeliveredGeneration { revision, ..delivered(number, 1) }, &[]);
        }
        history.record_delivery(delivered(1, 2), &[]);
        let newest = history.of_revision(generation(9)).map(|found| found.generation);
        assert_eq!(newest, Some(generation(1)), "its boot does not forget it");
        assert_eq!(history.of_revision(generation(1)), None);
    }

    #[test]
    fn prefix_that_names_generations_of_the_node_and_of_its_profile_is_refused() {
        let mut history = History::default();
        let revision = Some(generation(0x19));
        history.record_delivery(DeliveredGeneration { revision, ..delivered(0x12, 1) }, &[]);
        history.record_delivery(delivered(0x20, 2), &[]);
        let find = |revisions: &[u8], prefix: &str| {
            let revisions = revisions.iter().map(|number| generation(*number));
            history.find_by_prefix(revisions, prefix)
        };
        assert_eq!(find(&[0x19], "1"), revision, "the node's was rendered from it");
        assert_eq!(find(&[0x18], "1"), None, "two different ones");
        assert_eq!(find(&[0x21, 0x22], "2"), None);
        assert_eq!(find(&[0x19], "2"), Some(generation(0x20)));
        assert_eq!((find(&[0x19], ""), find(&[], "3")), (None, None));
    }
}
