//! Patterns of node names: `gpu{rack}-{n:03}`.

use meshd_types::{LabelKey, ParseError, is_host_name};
use std::{fmt, str::FromStr};

/// Largest number of a name: that of a rule with the most nodes.
const MAX_NUMBER: u32 = 99_999;
/// Largest width of a number, in digits.
const MAX_WIDTH: usize = 5;
/// A label value that all patterns must permit.
const SAMPLE_LABEL: &str = "a";
const HINT: &str =
    "write it as gpu{rack}-{n:03}: a-z, 0-9 and `-`, labels in braces, and one number {n}";

/// Names of the machines that a rule approves: text, values of labels, and a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern {
    text: String,
    parts: Vec<PatternPart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternPart {
    Text(String),
    /// Value of this label.
    Label(LabelKey),
    /// Number with leading zeros up to this width.
    Number(usize),
}

/// The names of a pattern for one machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NumberedNames {
    before: String,
    width: usize,
    after: String,
}

impl NamePattern {
    /// Returns the names for a machine with these labels. Values of labels are in lower case.
    ///
    /// # Errors
    /// The key of the first label that the machine does not have.
    pub fn names(
        &self,
        label: impl Fn(&LabelKey) -> Option<String>,
    ) -> Result<NumberedNames, LabelKey> {
        let mut names = NumberedNames { before: String::new(), width: 0, after: String::new() };
        for part in &self.parts {
            let text = match part {
                PatternPart::Text(text) => text.clone(),
                PatternPart::Label(key) => label(key).ok_or_else(|| key.clone())?.to_lowercase(),
                PatternPart::Number(width) => {
                    names.width = *width;
                    continue;
                }
            };
            let side = if names.width == 0 { &mut names.before } else { &mut names.after };
            side.push_str(&text);
        }
        Ok(names)
    }
}

impl NumberedNames {
    /// Returns the name with the least number from `from` on that is free, and its number. `None`
    /// if no name is free or valid.
    pub fn first_free(&self, from: u32, is_taken: impl Fn(&str) -> bool) -> Option<(u32, String)> {
        (from.max(1)..=MAX_NUMBER)
            .map(|number| (number, self.name(number)))
            .take_while(|(_, name)| is_host_name(name))
            .find(|(_, name)| !is_taken(name))
    }

    fn name(&self, number: u32) -> String {
        let NumberedNames { before, width, after } = self;
        format!("{before}{number:0width$}{after}", width = *width)
    }
}

impl FromStr for NamePattern {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let invalid = |what: &str| ParseError::of_text(text, what, HINT);
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) =
                after.split_once('}').ok_or_else(|| invalid("has a brace without its end"))?;
            if !before.is_empty() {
                parts.push(PatternPart::Text(before.to_owned()));
            }
            parts.push(placeholder(name).ok_or_else(|| invalid("has an unknown placeholder"))?);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(PatternPart::Text(rest.to_owned()));
        }
        let numbers = parts.iter().filter(|part| matches!(part, PatternPart::Number(_))).count();
        if numbers != 1 {
            return Err(invalid("does not have exactly one number"));
        }
        let pattern = NamePattern { text: text.to_owned(), parts };
        let names = pattern.names(|_| Some(SAMPLE_LABEL.to_owned()));
        let is_valid = names.is_ok_and(|names| is_host_name(&names.name(MAX_NUMBER)));
        if is_valid { Ok(pattern) } else { Err(invalid("is not a pattern of host names")) }
    }
}

/// Parses `n`, `n:03` or the key of a label.
fn placeholder(name: &str) -> Option<PatternPart> {
    let Some(width) = name.strip_prefix("n:0") else {
        return match name {
            "n" => Some(PatternPart::Number(1)),
            key => key.parse().ok().map(PatternPart::Label),
        };
    };
    let width = width.parse::<usize>().ok().filter(|width| (1..=MAX_WIDTH).contains(width))?;
    Some(PatternPart::Number(width))
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::Hint as _;
    use proptest::prelude::*;

    fn names(pattern: &str, rack: Option<&str>) -> Result<NumberedNames, LabelKey> {
        let pattern: NamePattern = pattern.parse().unwrap();
        pattern.names(|_| rack.map(str::to_owned))
    }

    #[test]
    fn first_free_number_makes_the_name() {
        let found = names("gpu{rack}-{n:03}", Some("B")).unwrap();
        assert_eq!(found.first_free(1, |_| false), Some((1, "gpub-001".to_owned())));
        let taken = |name: &str| ["gpub-001", "gpub-002"].contains(&name);
        assert_eq!(found.first_free(0, taken), Some((3, "gpub-003".to_owned())));
        assert_eq!(found.first_free(MAX_NUMBER + 1, |_| false), None);
        assert_eq!(names("gpu{rack}-{n}", None).unwrap_err().to_string(), "rack");
        let wide = names("n{n}-{rack}", Some("x")).unwrap();
        assert_eq!(wide.first_free(7, |_| false), Some((7, "n7-x".to_owned())));
    }

    #[test]
    fn value_that_makes_no_host_name_has_no_free_name() {
        for value in ["a.b", "a_b", &"a".repeat(63)] {
            let found = names("gpu{rack}-{n:03}", Some(value)).unwrap();
            assert_eq!(found.first_free(1, |_| false), None, "{value}");
        }
    }

    #[test]
    fn malformed_pattern_is_refused_with_its_text() {
        for text in [
            "",
            "gpu",
            "gpu{rack}",
            "gpu{n",
            "gpu{n}{n}",
            "{n:00}",
            "{n:06}",
            "{n:3}x",
            "Gpu{n}",
            "gpu_{n}",
            "{n}-",
            "{}{n}",
            "{RACK}{n}",
        ] {
            let error = text.parse::<NamePattern>().expect_err(text);
            assert!(error.hint().is_some_and(|hint| hint.contains("{n:03}")), "{text}");
        }
        let long = format!("{}{{n}}", "a".repeat(60));
        assert!(long.parse::<NamePattern>().is_err(), "a number has up to 5 digits");
    }

    proptest! {
        #[test]
        fn name_of_any_pattern_is_a_host_name(text in "[a-z{}n:03-]{0,20}") {
            if let Ok(pattern) = text.parse::<NamePattern>() {
                prop_assert_eq!(pattern.to_string(), text);
                let names = pattern.names(|_| Some("r1".to_owned())).unwrap();
                let (_, name) = names.first_free(1, |_| false).expect("a name");
                prop_assert!(is_host_name(&name), "{}", name);
            }
        }
    }
}
