//! The error of a command: object, cause, hint and exit code.

use meshd_config::Faults;
use meshd_lab::{LabError, demo::DemoError};
use std::{fmt, io, process::ExitCode};

/// Ends a verb with exit code 1.
#[derive(Debug)]
pub struct Failure {
    message: String,
    hint: String,
    /// Faults of files print by themselves, each with its own hint.
    faults: Option<Faults>,
    broken_pipe: bool,
    /// The exit code of a program that ran elsewhere, instead of 1.
    code: Option<u8>,
}

impl Failure {
    /// A sentence, and what to do next.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure { message: message.into(), hint: hint.into(), faults: None, broken_pipe: false, code: None }
    }

    /// An error that reads "what is wrong; what to do", with everything under it.
    pub fn of(error: &dyn std::error::Error) -> Self {
        let text = error.to_string();
        let (message, hint) = text.split_once("; ").unwrap_or((&text, ""));
        let mut whole = message.to_owned();
        let mut source = error.source();
        while let Some(error) = source {
            whole = format!("{whole}: {error}");
            source = error.source();
        }
        Failure::new(whole, hint)
    }

    /// A program that ran elsewhere ended with this code; it has said why itself.
    pub(crate) fn of_program(code: u8) -> Self {
        Failure { code: Some(code), ..Failure::new("", "") }
    }

    /// Says it to whoever typed the verb.
    pub(crate) fn tell(&self) {
        if self.code.is_none() {
            eprintln!("{self}");
        }
    }

    /// What the verb ends with.
    pub(crate) fn code(&self) -> ExitCode {
        self.code.map_or(ExitCode::FAILURE, ExitCode::from)
    }

    /// The sentence alone.
    pub(crate) fn sentence(&self) -> &str {
        &self.message
    }

    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.broken_pipe
    }
}

impl From<Faults> for Failure {
    fn from(faults: Faults) -> Self {
        Failure { faults: Some(faults), ..Failure::new("", "") }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::of(error.as_ref())
    }
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        Failure::of(&error)
    }
}

impl From<DemoError> for Failure {
    fn from(error: DemoError) -> Self {
        Failure::of(&error)
    }
}

impl From<io::Error> for Failure {
    /// Only for writing to standard output: other errors are told with what was being done.
    fn from(error: io::Error) -> Self {
        let broken_pipe = error.kind() == io::ErrorKind::BrokenPipe;
        Failure { broken_pipe, ..Failure::new(format!("cannot write to standard output: {error}"), "") }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(faults) = &self.faults {
            return fmt::Display::fmt(faults, f);
        }
        write!(f, "error: {}", self.message)?;
        if !self.hint.is_empty() {
            write!(f, "\n  hint: {}", self.hint)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open x; look at its mode")]
    struct Outer(#[source] io::Error);

    #[test]
    fn failure_says_what_why_and_what_to_do() {
        let failure = Failure::of(&Outer(io::Error::other("disk on fire")));
        assert_eq!(failure.to_string(), "error: cannot open x: disk on fire\n  hint: look at its mode");
    }
}
