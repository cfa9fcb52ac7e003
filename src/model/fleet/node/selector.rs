//! Selects nodes by labels: `rack=a,feed!=2`.

use super::label::{LabelKey, LabelValue, Labels};
use meshd_types::ParseError;
use std::{fmt, str::FromStr};

/// Maximum number of terms in one selector.
pub const MAX_TERMS: usize = 16;

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

meshd_types::serde_as_text!(Selector);

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
