//! A relative path on a node that cannot leave its root.

use crate::ParseError;
use std::{ffi::OsStr, fmt, str::FromStr};

/// A relative path of normal components: no `..`, no `.`, no empty part, no NUL or control
/// character.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SafePath(String);

/// Maximum length of a path in bytes, which tar and Linux permit.
const MAX_PATH: usize = 1024;

/// Returns whether a folder of an overlay has files of nodes: `rootfs`, or `rootfs.SYSTEM` for those
/// of one system.
pub fn is_rootfs(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.split('.').next() == Some("rootfs"))
}

impl SafePath {
    /// Parses a path with or without a leading `/`.
    pub fn new(text: &str) -> Result<Self, ParseError> {
        let hint = "write a plain path such as /etc/motd";
        let relative = text.strip_prefix('/').unwrap_or(text);
        if relative.is_empty() {
            return Err(ParseError::new("the path is empty", hint));
        }
        if relative.len() > MAX_PATH {
            let message = format!("a path of {} bytes is too long", relative.len());
            return Err(ParseError::new(message, format!("use at most {MAX_PATH}")));
        }
        if relative.chars().any(char::is_control) {
            return Err(ParseError::new(format!("{text:?} has a control character"), hint));
        }
        if relative.split('/').any(|part| matches!(part, "" | "." | "..")) {
            let message = format!("`{text}` has a `.`, `..` or empty component");
            return Err(ParseError::new(message, hint));
        }
        Ok(SafePath(relative.to_owned()))
    }

    /// Returns the path without a leading slash, as in archives.
    pub fn relative(&self) -> &str {
        &self.0
    }

    /// Returns every folder above this path, the outermost first.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        self.0.match_indices('/').map(|(at, _)| &self.0[..at])
    }
}

impl fmt::Display for SafePath {
    /// Writes the absolute path on the node, with a leading slash.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0)
    }
}

impl FromStr for SafePath {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

super::debug_as_text!(SafePath);
super::serde_as_text!(SafePath);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn path_that_leaves_its_root_is_refused() {
        for text in ["", "/", "..", "../x", "/etc/../../x", "a//b", "/./a", "a/", "a\0b", "//etc"] {
            assert!(SafePath::new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn parents_come_outermost_first() {
        let path = SafePath::new("/etc/init.d/mesh-agent").expect("plain");
        assert_eq!(path.parents().collect::<Vec<_>>(), ["etc", "etc/init.d"]);
    }

    proptest! {
        #[test]
        fn accepted_path_stays_below_its_root(text in "\\PC{0,60}|[a./]{0,12}") {
            if let Ok(path) = SafePath::new(&text) {
                let full = std::path::Path::new("/root").join(path.relative());
                prop_assert!(full.starts_with("/root"));
                prop_assert!(full.components().all(|part| part != std::path::Component::ParentDir));
            }
        }
    }
}
