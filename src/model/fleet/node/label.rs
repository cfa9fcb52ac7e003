//! Labels of a node: `key=value`, for example rack, switch and power feed.

use meshd_types::ParseError;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, str::FromStr};

/// Maximum length of a key or value, in characters.
pub const MAX_LABEL: usize = 63;
/// Maximum number of labels of one node.
pub const MAX_LABELS: usize = 32;

/// Labels by key.
pub type Labels = BTreeMap<LabelKey, LabelValue>;

fn is_label(text: &str, is_plain: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= MAX_LABEL
        && [bytes.first(), bytes.last()]
            .into_iter()
            .all(|end| end.is_some_and(|byte| is_plain(*byte)))
        && bytes.iter().all(|byte| is_plain(*byte) || b"-_.".contains(byte))
}

/// Returns the error for a text that is not a label; `letters` are permitted.
fn invalid(text: &str, what: &str, letters: &str) -> ParseError {
    let hint = format!(
        "use 1 to {MAX_LABEL} of {letters}, 0-9, `-`, `_` and `.`, with a letter or digit at both ends"
    );
    ParseError::of_text(text, what, hint)
}

/// The key of a label. A key never ends with `-`, because `KEY-` removes a label on the command
/// line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelKey(String);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelValue(String);

impl FromStr for LabelKey {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if is_label(text, is_plain) {
            Ok(LabelKey(text.to_owned()))
        } else {
            Err(invalid(text, "is not a label key", "a-z"))
        }
    }
}

impl FromStr for LabelValue {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric();
        if is_label(text, is_plain) {
            Ok(LabelValue(text.to_owned()))
        } else {
            Err(invalid(text, "is not a label value", "A-Z, a-z"))
        }
    }
}

impl fmt::Display for LabelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for LabelValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

meshd_types::serde_as_text!(LabelKey);
meshd_types::serde_as_text!(LabelValue);

/// Labels to set and to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LabelChange {
    pub set: Labels,
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
    fn malformed_label_is_refused_with_its_text() {
        let long = "a".repeat(MAX_LABEL + 1);
        for text in ["", "-", "rack-", "-rack", "Rack", "a b", "a=b", "a,b", "!a", "ü", &long] {
            assert!(text.parse::<LabelKey>().is_err(), "{text:?}");
        }
        for text in ["", "a b", "a,b", "a=b", ".a", "a-", "ü", "a\n", &long] {
            let error = text.parse::<LabelValue>().expect_err(text);
            assert!(error.to_string().contains(text.trim_end()), "{error}");
        }
        for text in ["rack", "a", "0", "power.feed_1-b", &"a".repeat(MAX_LABEL)] {
            assert!(
                text.parse::<LabelKey>().is_ok() && text.parse::<LabelValue>().is_ok(),
                "{text:?}"
            );
        }
        assert!("Row-7.B".parse::<LabelValue>().is_ok());
    }

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
