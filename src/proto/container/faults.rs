//! Collects the faults of a specification.

use crate::{task::check_argv, vm::SpecFault};
use meshd_types::Hint;
use std::{fmt::Display, ops::RangeInclusive};

/// Maximum length of a path, in bytes.
const MAX_PATH: usize = 1024;

#[derive(Default)]
pub(super) struct ReplicaFaults(pub(super) Vec<SpecFault>);

impl ReplicaFaults {
    pub(super) fn add(&mut self, key: &str, message: impl Into<String>, hint: impl Into<String>) {
        self.0.push(SpecFault { key: key.to_owned(), message: message.into(), hint: hint.into() });
    }

    pub(super) fn bound<T: PartialOrd + Display>(
        &mut self,
        key: &str,
        value: T,
        range: &RangeInclusive<T>,
    ) {
        if !range.contains(&value) {
            let hint = format!("write {} to {}", range.start(), range.end());
            self.add(key, format!("{value} is out of range"), hint);
        }
    }

    pub(super) fn port(&mut self, key: &str, port: u16) {
        if port == 0 {
            self.add(key, "port 0 is out of range", "write 1 to 65535");
        }
    }

    pub(super) fn argv(&mut self, key: &str, argv: &[String]) {
        if let Err(error) = check_argv(argv) {
            self.add(key, error.message(), error.hint().unwrap_or_default());
        }
    }

    pub(super) fn path(&mut self, key: &str, path: &str) {
        let is_path = path.starts_with('/') && path.len() <= MAX_PATH;
        if !is_path || path.contains(|c: char| c.is_control() || c == ' ') {
            let hint = format!("write one that begins with `/`, up to {MAX_PATH} bytes");
            self.add(key, "is not an absolute path", hint);
        }
    }
}
