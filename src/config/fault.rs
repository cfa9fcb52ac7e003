//! Faults of a configuration file: position, cause and hint. All faults of a file are reported
//! together.

use meshd_types::one_line;
use serde::{Deserialize, Serialize};
use std::{cmp::Reverse, fmt, path::PathBuf};

/// A fault of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Fault {
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// Line from 1; 0 for the whole file.
    pub line: usize,
    /// Dotted path of the key, such as `dhcp.range`; empty when there is none.
    pub key: String,
    pub message: String,
    /// Hint in the imperative; may be empty.
    pub hint: String,
}

impl Fault {
    /// Makes a fault of a whole file.
    pub fn of_file(
        file: impl Into<PathBuf>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Fault {
            file: file.into(),
            line: 0,
            key: String::new(),
            message: message.into(),
            hint: hint.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // File names, keys and messages may contain what an author of another file wrote.
        write!(f, "{}:", one_line(&self.file.to_string_lossy()))?;
        if self.line > 0 {
            write!(f, "{}:", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", one_line(&self.key))?;
        }
        write!(f, " {}", one_line(&self.message))?;
        if !self.hint.is_empty() {
            write!(f, "\n  hint: {}", one_line(&self.hint))?;
        }
        Ok(())
    }
}

/// All faults of one file or more, in the order of their lines. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Faults(pub Vec<Fault>);

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Faults(vec![fault])
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n"))
    }
}

impl std::error::Error for Faults {}

/// Returns the word of `known` with the smallest edit distance to `text`; `None` if none is
/// similar.
pub fn nearest<'w>(text: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    // A third of the characters may differ, but at least one.
    let allowed = (text.chars().count() / 3).max(1);
    let scored = known.into_iter().map(|word| (distance(&text.to_lowercase(), word), word));
    // Of equally distant words, the one with the longest common beginning: a missing letter at the
    // end is more likely than at the front.
    let common = |word: &str| {
        text.to_lowercase().chars().zip(word.chars()).take_while(|(a, b)| a == b).count()
    };
    let near = scored.filter(|(distance, _)| *distance <= allowed);
    near.min_by_key(|(distance, word)| (*distance, Reverse(common(word)))).map(|(_, word)| word)
}

/// "did you mean `x`?" when a known word is near, else the list of known words.
pub fn suggest<'w>(text: &str, known: impl IntoIterator<Item = &'w str> + Clone) -> String {
    if let Some(word) = nearest(text, known.clone()) {
        return format!("did you mean `{word}`?");
    }
    let mut words: Vec<&str> = known.into_iter().collect();
    words.sort_unstable();
    if words.is_empty() {
        "remove it, or define it first".to_owned()
    } else {
        format!("known here: {}", words.join(", "))
    }
}

/// Optimal string alignment: insertions, deletions, substitutions, and two neighbours swapped.
fn distance(left: &str, right: &str) -> usize {
    // Longer words are not typing mistakes; the bound limits the work.
    const MAX_WORD: usize = 64;
    let left: Vec<char> = left.chars().take(MAX_WORD).collect();
    let right: Vec<char> = right.chars().take(MAX_WORD).collect();
    let mut rows = vec![vec![0usize; right.len() + 1]; left.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=left.len() {
        for j in 1..=right.len() {
            let differs = usize::from(left[i - 1] != right[j - 1]);
            let mut best =
                (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + differs);
            if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_key_is_suggested_and_unrelated_word_is_not() {
        let known = ["interface", "address", "range", "lease"];
        for (typed, meant) in [
            ("interfce", "interface"),
            ("adress", "address"),
            ("rnage", "range"),
            ("Lease", "lease"),
        ] {
            assert_eq!(nearest(typed, known), Some(meant), "{typed}");
        }
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("vcpu", ["cpu", "vcpus"]), Some("vcpus"));
        assert_eq!(suggest("colour", ["b", "a"]), "known here: a, b");
    }

    #[test]
    fn fault_text_omits_empty_fields() {
        let mut fault = Fault::of_file("site.toml", "no such file", "name it with --site FILE");
        assert_eq!(fault.to_string(), "site.toml: no such file\n  hint: name it with --site FILE");
        (fault.line, fault.key, fault.hint) = (3, "net.interface".into(), String::new());
        assert_eq!(fault.to_string(), "site.toml:3: net.interface: no such file");
    }
}
