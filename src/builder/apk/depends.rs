//! Dependencies and provisions of a package: `musl`, `so:libz.so.1`, `openrc>=0.50`, `!systemd`.

use super::version;
use std::{cmp::Ordering, fmt};

/// A dependency or conflict.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dependency {
    /// A package or a provided name.
    pub name: String,
    pub versions: Versions,
    /// True for a conflict: the named package must not be installed.
    pub conflict: bool,
}

/// Version constraint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Versions {
    Any,
    /// Versions that compare with this one as less, equal or greater.
    Compared {
        /// Less is permitted.
        less: bool,
        /// Equal is permitted.
        equal: bool,
        /// Greater is permitted.
        greater: bool,
        /// Compared version.
        than: String,
    },
    /// This version and all versions with it as prefix (`~`).
    Prefix(String),
}

impl Dependency {
    /// Parses one word of a `D:` or `i:` line; accepts any text.
    pub fn parse(word: &str) -> Self {
        let (conflict, word) = word.strip_prefix('!').map_or((false, word), |word| (true, word));
        let at = word.find(['<', '>', '=', '~']).unwrap_or(word.len());
        let (name, rest) = word.split_at(at);
        let than = rest.trim_start_matches(['<', '>', '=', '~']);
        let operator = &rest[..rest.len() - than.len()];
        // The tag of `name@tag` is ignored: it selects a repository, which is the administrator's
        // decision.
        let name = name.split('@').next().unwrap_or(name).to_owned();
        let versions = match operator {
            "" => Versions::Any,
            _ if operator.contains('~') => Versions::Prefix(than.to_owned()),
            _ => {
                let has = |c| operator.contains(c);
                // `><` compares a package's identity, which the index determines.
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

    /// Returns whether a name and version satisfy the dependency. A provided name without a version
    /// satisfies no version constraint.
    pub fn is_met_by(&self, name: &str, version: Option<&str>) -> bool {
        self.name == name
            && match (&self.versions, version) {
                (Versions::Any, _) => true,
                (_, None) => false,
                (Versions::Prefix(prefix), Some(version)) => {
                    version::matches_prefix(version, prefix)
                }
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
            Versions::Prefix(version) => write!(f, "{not}{}~{version}", self.name),
            Versions::Compared { less, equal, greater, than } => {
                let sign = |is: bool, sign| if is { sign } else { "" };
                write!(
                    f,
                    "{not}{}{}{}{}{than}",
                    self.name,
                    sign(*less, "<"),
                    sign(*greater, ">"),
                    sign(*equal, "=")
                )
            }
        }
    }
}

/// Parses a word of a `p:` line: the name, and the version if there is one.
pub fn parse_provided(word: &str) -> (&str, Option<&str>) {
    word.split_once('=').map_or((word, None), |(name, version)| (name, Some(version)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_operators_match_apk() {
        let satisfied = |word: &str, version| Dependency::parse(word).is_met_by("a", version);
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
            assert!(satisfied(word, yes), "{word} {yes:?}");
            assert!(no.is_none() || !satisfied(word, no), "{word} {no:?}");
            assert!(!Dependency::parse(word).is_met_by("b", yes), "{word}");
        }
        assert!(
            satisfied("a", None) && !satisfied("a>1", None),
            "without a version only the name is answered"
        );
    }

    #[test]
    fn dependency_text_round_trips() {
        for word in ["so:libc.musl-x86_64.so.1", "!x<2", "a>=1", "b=1.2-r3", "c~1"] {
            assert_eq!(Dependency::parse(word).to_string(), word);
        }
        assert!(Dependency::parse("!x").conflict);
        assert_eq!(Dependency::parse("a@edge").name, "a");
        assert_eq!(parse_provided("so:libz.so.1=1.3.1"), ("so:libz.so.1", Some("1.3.1")));
    }
}
