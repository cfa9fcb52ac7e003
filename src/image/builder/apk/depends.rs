//! Dependencies and provisions of a package: `musl`, `so:libz.so.1`, `openrc>=0.50`, `!systemd`.

use super::version;
use std::{cmp::Ordering, fmt};

/// One thing that a package needs, or must not meet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dependency {
    /// A package, or what one provides.
    pub name: String,
    /// Which versions of it.
    pub versions: Versions,
    /// It must not be there.
    pub conflict: bool,
}

/// Which versions are meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Versions {
    Any,
    /// Those that compare so with this one: less, equal, greater.
    Compared {
        /// Less will do.
        less: bool,
        /// Equal will do.
        equal: bool,
        /// Greater will do.
        greater: bool,
        /// With this one.
        than: String,
    },
    /// This one and finer ones.
    Fits(String),
}

impl Dependency {
    /// Reads one word of a `D:` or `i:` line; total.
    pub fn parse(word: &str) -> Self {
        let (conflict, word) = word.strip_prefix('!').map_or((false, word), |word| (true, word));
        let at = word.find(['<', '>', '=', '~']).unwrap_or(word.len());
        let (name, rest) = word.split_at(at);
        let than = rest.trim_start_matches(['<', '>', '=', '~']);
        let operator = &rest[..rest.len() - than.len()];
        // The repository of `name@tag` is the administrator's business, not the package's.
        let name = name.split('@').next().unwrap_or(name).to_owned();
        let versions = match operator {
            "" => Versions::Any,
            _ if operator.contains('~') => Versions::Fits(than.to_owned()),
            _ => {
                let has = |c| operator.contains(c);
                // `><` compares a package's identity, which here is the index's own.
                let identity = has('<') && has('>');
                Versions::Compared {
                    less: has('<') && !identity,
                    equal: has('=') || identity,
                    greater: has('>') && !identity,
                    than: than.to_owned(),
                }
            }
        };
        Dependency { name, versions, conflict }
    }

    /// True if something of this name and version is what is meant. What is provided without a version answers no question
    /// about versions.
    pub fn is_met_by(&self, name: &str, version: Option<&str>) -> bool {
        self.name == name
            && match (&self.versions, version) {
                (Versions::Any, _) => true,
                (_, None) => false,
                (Versions::Fits(asked), Some(version)) => version::fits(version, asked),
                (Versions::Compared { less, equal, greater, than }, Some(version)) => {
                    match version::compare(version, than) {
                        Ordering::Less => *less,
                        Ordering::Equal => *equal,
                        Ordering::Greater => *greater,
                    }
                }
            }
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = if self.conflict { "!" } else { "" };
        match &self.versions {
            Versions::Any => write!(f, "{not}{}", self.name),
            Versions::Fits(version) => write!(f, "{not}{}~{version}", self.name),
            Versions::Compared { less, equal, greater, than } => {
                let sign = |is: bool, sign| if is { sign } else { "" };
                write!(f, "{not}{}{}{}{}{than}", self.name, sign(*less, "<"), sign(*greater, ">"), sign(*equal, "="))
            }
        }
    }
}

/// A word of a `p:` line: the name, and the version if it has one.
pub fn provided(word: &str) -> (&str, Option<&str>) {
    word.split_once('=').map_or((word, None), |(name, version)| (name, Some(version)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comparison_operator_matches_apk() {
        let met = |word: &str, version| Dependency::parse(word).is_met_by("a", version);
        for (word, yes, no) in [
            ("a", Some("1"), None),
            ("a=1.2-r0", Some("1.2-r0"), Some("1.2-r1")),
            ("a<2", Some("1.9"), Some("2")),
            ("a<=2", Some("2"), Some("2-r1")),
            ("a>=2", Some("2"), Some("1.9_rc1")),
            ("a>2", Some("2.1"), Some("2")),
            ("a~2.1", Some("2.1.3"), Some("2.10")),
            ("a~=2.1", Some("2.1"), Some("2.2")),
        ] {
            assert!(met(word, yes), "{word} {yes:?}");
            assert!(no.is_none() || !met(word, no), "{word} {no:?}");
            assert!(!Dependency::parse(word).is_met_by("b", yes), "{word}");
        }
        assert!(met("a", None) && !met("a>1", None), "without a version only the name is answered");
    }

    #[test]
    fn words_round_trip() {
        for word in ["so:libc.musl-x86_64.so.1", "!x<2", "a>=1", "b=1.2-r3", "c~1"] {
            assert_eq!(Dependency::parse(word).to_string(), word);
        }
        assert!(Dependency::parse("!x").conflict);
        assert_eq!(Dependency::parse("a@edge").name, "a");
        assert_eq!(provided("so:libz.so.1=1.3.1"), ("so:libz.so.1", Some("1.3.1")));
    }
}
