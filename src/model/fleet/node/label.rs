//! Labels of a node: `key=value`, for example rack, switch and power feed.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use meshd_types::{LabelKey, LabelValue};

/// Maximum number of labels of one node.
pub const MAX_LABELS: usize = 32;

/// Labels by key.
pub type Labels = BTreeMap<LabelKey, LabelValue>;

/// Labels to set and to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LabelChange {
    pub set: BTreeMap<LabelKey, LabelValue>,
    /// Keys to remove; a missing key is not an error.
    pub unset: Vec<LabelKey>,
}

impl LabelChange {
    /// Returns the labels after the change.
    pub fn applied(&self, labels: &Labels) -> Labels {
        let mut after = labels.clone();
        after.retain(|key, _| !self.unset.contains(key));
        after.extend(self.set.clone());
        after
    }

    /// Returns the change in the form of the command line.
    pub fn words(&self) -> String {
        let set = self.set.iter().map(|(key, value)| format!("{key}={value}"));
        set.chain(self.unset.iter().map(|key| format!("{key}-"))).collect::<Vec<_>>().join(" ")
    }
}

/// Returns labels as text: `feed=2 rack=a`.
pub fn label_words(labels: &Labels) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_change_removes_before_it_sets_and_has_canonical_text() {
        let label =
            |key: &str, value: &str| (key.parse().expect("a key"), value.parse().expect("a value"));
        let labels = Labels::from([label("rack", "a"), label("feed", "1")]);
        let unset = vec!["rack".parse().expect("a key"), "gone".parse().expect("a key")];
        let change = LabelChange { set: Labels::from([label("feed", "2")]), unset };
        assert_eq!(change.applied(&labels), Labels::from([label("feed", "2")]));
        assert_eq!(change.words(), "feed=2 rack- gone-");
        assert_eq!(label_words(&labels), "feed=1 rack=a");
    }
}
