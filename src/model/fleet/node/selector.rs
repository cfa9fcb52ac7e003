//! Selects nodes by labels (`rack=a,feed!=2`), or by an ID or name or its beginning.

use super::label::{LabelKey, LabelValue, Labels};
use meshd_types::{NodeId, ParseError};
use std::{fmt, str::FromStr};

/// Maximum number of terms in one selector.
pub const MAX_TERMS: usize = 16;
/// Maximum number of candidates in the error for an ambiguous name.
pub const MAX_CANDIDATES: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Is(LabelKey, LabelValue),
    IsNot(LabelKey, LabelValue),
    Has(LabelKey),
    HasNot(LabelKey),
}

/// A condition on the labels of a node; every term must match. A node without the key matches
/// `key!=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(Vec<Term>);

impl Selector {
    /// Returns true if every term matches.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|term| match term {
            Term::Is(key, value) => labels.get(key) == Some(value),
            Term::IsNot(key, value) => labels.get(key) != Some(value),
            Term::Has(key) => labels.contains_key(key),
            Term::HasNot(key) => !labels.contains_key(key),
        })
    }
}

impl FromStr for Term {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if let Some((key, value)) = text.split_once("!=") {
            return Ok(Term::IsNot(key.parse()?, value.parse()?));
        }
        if let Some((key, value)) = text.split_once('=') {
            return Ok(Term::Is(key.parse()?, value.parse()?));
        }
        match text.strip_prefix('!') {
            Some(key) => Ok(Term::HasNot(key.parse()?)),
            None => Ok(Term::Has(text.parse()?)),
        }
    }
}

impl FromStr for Selector {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let terms: Vec<&str> = text.split(',').map(str::trim).collect();
        if terms.iter().any(|term| term.is_empty()) {
            let hint = "write key=value, key!=value, key or !key, separated by commas";
            return Err(ParseError::of_text(text, "is not a selector: empty term", hint));
        }
        if terms.len() > MAX_TERMS {
            let message = format!("invalid selector: {} terms", terms.len());
            return Err(ParseError::new(message, format!("use at most {MAX_TERMS}")));
        }
        Ok(Selector(terms.into_iter().map(str::parse).collect::<Result<_, _>>()?))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, term) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            match term {
                Term::Is(key, value) => write!(f, "{comma}{key}={value}")?,
                Term::IsNot(key, value) => write!(f, "{comma}{key}!={value}")?,
                Term::Has(key) => write!(f, "{comma}{key}")?,
                Term::HasNot(key) => write!(f, "{comma}!{key}")?,
            }
        }
        Ok(())
    }
}

/// Result of [`find_node`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedNode {
    /// The text names one node.
    One(NodeId),
    /// The text is ambiguous: at most [`MAX_CANDIDATES`] nodes as `ID (name)`, and the number of
    /// all matches.
    Several(Vec<String>, usize),
    /// The text names no node.
    None,
}

/// Finds a node by ID, else by name, else by the beginning of an ID or name. A removed node (third
/// element `false`) is found only by its complete ID.
pub fn find_node<'a>(
    text: &str,
    nodes: impl Iterator<Item = (NodeId, &'a str, bool)>,
) -> NamedNode {
    let whole = text.parse::<NodeId>().ok();
    let (mut named, mut begun) = (Vec::new(), Vec::new());
    for (id, name, is_present) in nodes {
        if whole == Some(id) {
            return NamedNode::One(id);
        }
        if is_present && name == text {
            named.push((id, name));
        } else if is_present
            && !text.is_empty()
            && (name.starts_with(text) || id.to_string().starts_with(text))
        {
            begun.push((id, name));
        }
    }
    match if named.is_empty() { begun } else { named }.as_slice() {
        [] => NamedNode::None,
        [(id, _)] => NamedNode::One(*id),
        several => {
            let candidates =
                several.iter().take(MAX_CANDIDATES).map(|(id, name)| format!("{id} ({name})"));
            NamedNode::Several(candidates.collect(), several.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(text: &str) -> Labels {
        let pairs = text.split(' ').filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(key, value)| (key.parse().expect("a key"), value.parse().expect("a value")))
            .collect()
    }

    fn selects(selector: &str, text: &str) -> bool {
        selector
            .parse::<Selector>()
            .unwrap_or_else(|error| panic!("{selector}: {error}"))
            .matches(&labels(text))
    }

    #[test]
    fn selector_matches_nodes_whose_labels_fulfil_every_term() {
        let node = "rack=a feed=1";
        for (selector, taken) in [
            ("rack=a", true),
            ("rack=b", false),
            ("rack!=b", true),
            ("rack!=a", false),
            ("switch!=x", true),
            ("rack", true),
            ("switch", false),
            ("!switch", true),
            ("!rack", false),
            ("rack=a, feed!=2", true),
            ("rack=a,feed!=1", false),
        ] {
            assert_eq!(selects(selector, node), taken, "{selector}");
        }
    }

    #[test]
    fn malformed_selector_is_refused() {
        let many = vec!["a"; MAX_TERMS + 1].join(",");
        for text in
            ["", ",", "a,", "a=", "=a", "!", "!=a", "a==b", "a=b=c", "!a=b", "a!b", "A=b", &many]
        {
            assert!(text.parse::<Selector>().is_err(), "{text:?}");
        }
    }

    fn id(number: u8) -> NodeId {
        meshd_types::Basis::Mac(meshd_types::MacAddr([2, 0, 0, 0, 0, number])).node_id()
    }

    #[test]
    fn node_is_found_by_id_name_or_unique_prefix_and_several_are_named() {
        let nodes = [
            (id(1), "web-1", true),
            (id(2), "web-10", true),
            (id(3), "db", true),
            (id(4), "old", false),
        ];
        let find = |text: &str| find_node(text, nodes.iter().copied());
        assert_eq!(
            find("web-1"),
            NamedNode::One(id(1)),
            "a whole name comes before the beginning of another one"
        );
        assert_eq!(find("d"), NamedNode::One(id(3)));
        assert_eq!(find(&id(4).to_string()), NamedNode::One(id(4)));
        assert_eq!(find("old"), NamedNode::None, "a removed node has no name");
        assert_eq!(find("x"), NamedNode::None);
        assert_eq!(find(""), NamedNode::None);
        let candidates = vec![format!("{} (web-1)", id(1)), format!("{} (web-10)", id(2))];
        assert_eq!(find("we"), NamedNode::Several(candidates, 2));
        assert_eq!(find(&id(3).to_string()[..6]), NamedNode::One(id(3)));
    }

    proptest! {
        #[test]
        fn selector_round_trips_as_text(text in ".{0,80}") {
            if let Ok(selector) = text.parse::<Selector>() {
                prop_assert_eq!(selector.to_string().parse::<Selector>(), Ok(selector));
            }
        }

        #[test]
        fn equal_and_unequal_terms_match_complementary_nodes(key in "[a-c]", value in "[a-c]", own in "[a-c]=[a-c]( [a-c]=[a-c])?") {
            prop_assert_ne!(selects(&format!("{key}={value}"), &own), selects(&format!("{key}!={value}"), &own));
            prop_assert_ne!(selects(&key, &own), selects(&format!("!{key}"), &own));
        }
    }
}
