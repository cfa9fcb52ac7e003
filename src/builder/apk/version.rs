//! Ordering of Alpine package versions, such as `1.2.10a_rc1-r3`.

use std::cmp::Ordering;

/// A parsed version. Invalid text is compared as text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct VersionParts<'v> {
    numbers: Vec<&'v str>,
    letter: Option<char>,
    suffixes: Vec<(i8, u64)>,
    revision: u64,
}

/// Suffixes in order; those with a negative number precede the release.
const SUFFIXES: [(&str, i8); 9] = [
    ("alpha", -4),
    ("beta", -3),
    ("pre", -2),
    ("rc", -1),
    ("cvs", 1),
    ("svn", 2),
    ("git", 3),
    ("hg", 4),
    ("p", 5),
];

/// Compares two versions as apk does.
pub fn compare(left: &str, right: &str) -> Ordering {
    match (parse(left), parse(right)) {
        (Some(left), Some(right)) => left.compare(&right),
        _ => left.cmp(right),
    }
}

/// Returns whether `version` matches `~prefix`: `1.2` matches `1.2`, `1.2.3` and `1.2.3-r4`, not
/// `1.20`.
pub fn matches_prefix(version: &str, prefix: &str) -> bool {
    version == prefix
        || version
            .strip_prefix(prefix)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn parse(text: &str) -> Option<VersionParts<'_>> {
    let (text, revision) = match text.rsplit_once("-r") {
        Some((text, revision)) => (text, revision.parse().ok()?),
        None => (text, 0),
    };
    // A commit hash does not affect the order.
    let text = text.split('~').next()?;
    let mut words = text.split('_');
    let mut head = words.next()?;
    let letter = head.chars().last().filter(char::is_ascii_lowercase);
    if letter.is_some() {
        head = &head[..head.len() - 1];
    }
    let numbers: Vec<&str> = head.split('.').collect();
    if !numbers
        .iter()
        .all(|number| !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit()))
    {
        return None;
    }
    let suffixes = words.map(|word| {
        let digits = word.find(|c: char| c.is_ascii_digit()).unwrap_or(word.len());
        let (name, number) = word.split_at(digits);
        let rank = SUFFIXES.iter().find(|(suffix, _)| *suffix == name)?.1;
        Some((rank, if number.is_empty() { 0 } else { number.parse().ok()? }))
    });
    Some(VersionParts { letter, suffixes: suffixes.collect::<Option<_>>()?, numbers, revision })
}

impl VersionParts<'_> {
    fn compare(&self, other: &Self) -> Ordering {
        let numbers = self.numbers.iter().zip(&other.numbers).enumerate();
        let numbers =
            numbers.map(|(at, (left, right))| number(at, left, right)).find(|order| order.is_ne());
        let suffix = |list: &[(i8, u64)], at: usize| list.get(at).copied().unwrap_or((0, 0));
        let longest = self.suffixes.len().max(other.suffixes.len());
        let mut suffixes =
            (0..longest).map(|at| suffix(&self.suffixes, at).cmp(&suffix(&other.suffixes, at)));
        numbers
            .unwrap_or(Ordering::Equal)
            .then(self.numbers.len().cmp(&other.numbers.len()))
            .then(self.letter.cmp(&other.letter))
            .then(suffixes.find(|order| order.is_ne()).unwrap_or(Ordering::Equal))
            .then(self.revision.cmp(&other.revision))
    }
}

/// After a dot, a number with a leading zero is a fraction: `1.05` is less than `1.1`.
fn number(at: usize, left: &str, right: &str) -> Ordering {
    if at > 0 && (left.starts_with('0') || right.starts_with('0')) {
        return left.cmp(right);
    }
    let left = left.trim_start_matches('0');
    let right = right.trim_start_matches('0');
    left.len().cmp(&right.len()).then(left.cmp(right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_sort_in_apk_order() {
        // From apk-tools' own test of versions.
        let ascending = [
            "0.1.0_alpha",
            "0.1.0_alpha2",
            "0.1.0_beta1",
            "0.1.0_pre2",
            "0.1.0_rc1",
            "0.1.0",
            "0.1.0-r1",
            "0.1.0_p1",
            "0.1.0.1",
            "0.9_git20200101",
            "1.02",
            "1.1",
            "1.2",
            "1.2-r2",
            "1.2a",
            "1.2b-r1",
            "1.2.0",
            "1.2.5-r23",
            "1.2.10",
            "1.10",
            "2.39-r4",
            "10",
            "20240101",
            "99999999999999999999999",
        ];
        for (at, left) in ascending.iter().enumerate() {
            for (other, right) in ascending.iter().enumerate() {
                assert_eq!(compare(left, right), at.cmp(&other), "{left} and {right}");
            }
        }
        assert_eq!(compare("1.2.3~abc-r1", "1.2.3~def-r1"), Ordering::Equal);
    }

    #[test]
    fn fuzzy_match_accepts_subversions_but_not_longer_numbers() {
        assert!(
            matches_prefix("1.2", "1.2")
                && matches_prefix("1.2.3-r4", "1.2")
                && matches_prefix("1.2-r1", "1.2")
        );
        assert!(!matches_prefix("1.20", "1.2") && !matches_prefix("1.3", "1.2"));
    }

    proptest! {
        #[test]
        fn version_order_is_total(a in "[0-9]{1,3}(\\.[0-9]{1,2}){0,2}[ab]?(_(rc|p)[0-9]?)?(-r[0-9])?", b in "\\PC{0,12}") {
            prop_assert_eq!(compare(&a, &a), Ordering::Equal);
            prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
        }
    }
}
