//! Hostlists: names of nodes with ranges and wildcards, such as `gpu[001-040,050]`, `r[1-2]n[01-04]`
//! or `gpu*`. The syntax is that of ClusterShell and Slurm.
//!
//! | module | content |
//! | --- | --- |
//! | `ranges` | the ranges between two brackets |
//! | here | parser, bounds and expansion |
//!
//! Brackets contain ranges of numbers. They are no classes of characters as in a shell: `[a-c]` is
//! an error.

mod ranges;

use crate::{MAX_NAME, ParseError};
use ranges::Range;
use std::{collections::BTreeSet, fmt, str::FromStr};

/// Maximum length of a hostlist, in bytes.
pub const MAX_HOSTLIST: usize = 256 * 1024;
/// Maximum number of names and wildcard patterns of a hostlist.
pub const MAX_HOSTS: usize = 10_000;
/// Maximum number of patterns with wildcards, because each is compared with every node.
pub const MAX_GLOBS: usize = 256;
/// Maximum number of brackets in one term.
pub const MAX_BRACKETS: usize = 8;

/// A part of a hostlist, without brackets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodePattern {
    /// A term without brackets and wildcards. A unique beginning of a name is sufficient.
    Word(String),
    /// A complete name, from a term with brackets.
    Name(String),
    /// A name with wildcards: `*` matches any text, `?` one character.
    Glob(String),
}

/// A list of node names. Each pattern occurs once, in the order of the text.
#[derive(Clone, PartialEq, Eq)]
pub struct Hostlist {
    text: String,
    patterns: Vec<NodePattern>,
}

impl Hostlist {
    /// Returns the names and wildcard patterns.
    pub fn patterns(&self) -> &[NodePattern] {
        &self.patterns
    }

    /// Returns the only word of a list without brackets, wildcards and commas.
    pub fn as_word(&self) -> Option<&str> {
        match self.patterns.as_slice() {
            [NodePattern::Word(word)] => Some(word),
            _ => None,
        }
    }

    /// Joins several lists into one.
    ///
    /// # Errors
    /// The result exceeds a bound of a hostlist.
    pub fn join(lists: &[Hostlist]) -> Result<Hostlist, ParseError> {
        lists.iter().map(|list| list.text.as_str()).collect::<Vec<_>>().join(",").parse()
    }
}

/// Returns whether a name matches a pattern with the wildcards `*` and `?`.
pub fn matches_glob(pattern: &str, name: &str) -> bool {
    let pattern = pattern.as_bytes();
    let name = name.as_bytes();
    let mut at = 0;
    let mut from = 0;
    // The last `*`, and where the text that it matches ends.
    let mut star: Option<(usize, usize)> = None;
    while from < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[from] => {
                at += 1;
                from += 1;
            }
            _ => {
                let Some((position, end)) = star else { return false };
                star = Some((position, end + 1));
                at = position + 1;
                from = end + 1;
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// A piece of one term.
enum Piece<'t> {
    Text(&'t str),
    Ranges(Vec<Range>),
}

impl FromStr for Hostlist {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text.len() > MAX_HOSTLIST {
            let message = format!("a hostlist of {} bytes is too long", text.len());
            return Err(ParseError::new(message, format!("use at most {MAX_HOSTLIST}")));
        }
        let mut patterns = Vec::new();
        let mut seen = BTreeSet::new();
        let mut globs = 0;
        for term in terms(text)? {
            let pieces = pieces(term)?;
            let count = pieces.iter().map(Piece::count).fold(1, u64::saturating_mul);
            if count.saturating_add(patterns.len() as u64) > MAX_HOSTS as u64 {
                let hint = format!("use at most {MAX_HOSTS}, or a pattern such as gpu*");
                return Err(ParseError::of_text(
                    text,
                    &format!("names too many nodes: `{term}` alone names {count}"),
                    hint,
                ));
            }
            for pattern in expand(&pieces) {
                globs += usize::from(matches!(pattern, NodePattern::Glob(_)));
                if globs > MAX_GLOBS {
                    let hint = format!("use at most {MAX_GLOBS}");
                    return Err(ParseError::of_text(text, "has too many wildcards", hint));
                }
                if seen.insert(pattern.clone()) {
                    patterns.push(pattern);
                }
            }
        }
        Ok(Hostlist { text: text.to_owned(), patterns })
    }
}

impl Piece<'_> {
    fn count(&self) -> u64 {
        match self {
            Piece::Text(_) => 1,
            Piece::Ranges(ranges) => ranges.iter().map(Range::count).fold(0, u64::saturating_add),
        }
    }
}

/// Splits a list at its commas outside brackets.
fn terms(text: &str) -> Result<Vec<&str>, ParseError> {
    let fault = |is_what: &str, hint: &str| Err(ParseError::of_text(text, is_what, hint));
    let mut terms = Vec::new();
    let mut begin = 0;
    let mut inside = false;
    for (at, c) in text.char_indices() {
        match (c, inside) {
            ('[', true) => return fault("has nested brackets", "write r[1-2]n[01-04]"),
            (']', false) => return fault("has `]` without `[`", "write gpu[001-040]"),
            ('[' | ']', _) => inside = !inside,
            (',', false) => {
                terms.push(text[begin..at].trim());
                begin = at + 1;
            }
            (c, _) if c.is_control() => {
                return fault("has a control character", "write names of nodes");
            }
            _ => {}
        }
    }
    if inside {
        return fault("has `[` without `]`", "write gpu[001-040], in quotes for the shell");
    }
    terms.push(text[begin..].trim());
    if terms.iter().any(|term| term.is_empty()) {
        return fault("has an empty name", "write names with one comma between them");
    }
    Ok(terms)
}

/// Splits a term into texts and brackets.
fn pieces(term: &str) -> Result<Vec<Piece<'_>>, ParseError> {
    let mut pieces = Vec::new();
    let mut length = 0;
    for (number, part) in term.split(['[', ']']).enumerate() {
        // The brackets alternate, so every second part is between two of them.
        if number % 2 == 1 {
            pieces.push(Piece::Ranges(ranges::parse(term, part)?));
        } else if !part.is_empty() {
            length += part.len();
            pieces.push(Piece::Text(part));
        }
    }
    if length > MAX_NAME {
        let hint = format!("a host name has at most {MAX_NAME} characters");
        return Err(ParseError::of_text(term, "is too long for a node", hint));
    }
    let brackets = pieces.iter().filter(|piece| matches!(piece, Piece::Ranges(_))).count();
    if brackets > MAX_BRACKETS {
        let hint = format!("use at most {MAX_BRACKETS}");
        return Err(ParseError::of_text(term, "has too many brackets", hint));
    }
    Ok(pieces)
}

/// Returns the names of a term: the last bracket counts fastest. The caller has checked their
/// number.
fn expand(pieces: &[Piece<'_>]) -> Vec<NodePattern> {
    let mut names = vec![String::new()];
    for piece in pieces {
        match piece {
            Piece::Text(text) => names.iter_mut().for_each(|name| name.push_str(text)),
            Piece::Ranges(ranges) => {
                let numbers: Vec<String> = ranges.iter().flat_map(Range::numbers).collect();
                let extended = names
                    .iter()
                    .flat_map(|name| numbers.iter().map(move |number| format!("{name}{number}")));
                names = extended.collect();
            }
        }
    }
    let is_plain = pieces.iter().all(|piece| matches!(piece, Piece::Text(_)));
    let pattern = |name: String| match name.contains(['*', '?']) {
        true => NodePattern::Glob(name),
        false if is_plain => NodePattern::Word(name),
        false => NodePattern::Name(name),
    };
    names.into_iter().map(pattern).collect()
}

impl fmt::Display for Hostlist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

crate::debug_as_text!(Hostlist);
crate::serde_as_text!(Hostlist);

#[cfg(test)]
mod tests;
