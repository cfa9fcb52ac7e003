//! The error of a command: object, cause, hint and exit code.

use super::clean::clean;
use meshd_config::{Fault, Faults, files::read_regular};
use meshd_lab::{LabError, demo::DemoError};
use meshd_types::{Hint, one_line, with_sources};
use std::{error::Error, fmt, io, process::ExitCode};

/// Maximum number of faults of files that an error shows.
const MAX_FAULTS: usize = 100;
/// Maximum length of a shown line of a file, in characters.
const MAX_LINE: usize = 240;

/// The error of a command. The program exits with code 1.
#[derive(Debug)]
pub struct Failure {
    message: String,
    /// Lines of a log, below the message.
    log: String,
    hint: String,
    /// Faults of files, each printed with its hint.
    faults: Option<String>,
    /// Error of standard output.
    output: Option<io::ErrorKind>,
    /// Exit code of a program on a node, used instead of 1.
    code: Option<u8>,
    /// meshd did not answer, or failed: the same request may succeed later.
    is_temporary: bool,
}

impl Failure {
    /// Creates a failure from a message and a hint.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure {
            message: message.into(),
            log: String::new(),
            hint: hint.into(),
            faults: None,
            output: None,
            code: None,
            is_temporary: false,
        }
    }

    /// Creates a failure from an error, with all its sources.
    pub fn of(error: &impl Hint) -> Self {
        Failure::new(error.message(), error.hint().unwrap_or_default())
    }

    /// Creates a failure from an error of a library, with all its sources.
    pub fn without_hint(error: &(impl Error + ?Sized)) -> Self {
        Failure::new(with_sources(error), "")
    }

    /// Creates a failure from faults of files that may be on another machine.
    pub(crate) fn of_remote(faults: &Faults) -> Self {
        Failure { faults: Some(faults.to_string()), ..Failure::new("", "") }
    }

    /// Creates a failure with the exit code of a program on a node, or of a signal. The error is
    /// already printed.
    pub(crate) fn of_program(code: u8) -> Self {
        Failure { code: Some(code), ..Failure::new("", "") }
    }

    /// Prints the failure to standard error.
    pub(crate) fn print(&self) {
        if self.code.is_none() {
            message!("{self}");
        }
    }

    /// Returns the exit code of the command.
    pub(crate) fn code(&self) -> ExitCode {
        self.code.map_or(ExitCode::FAILURE, ExitCode::from)
    }

    pub(crate) fn temporary(self) -> Self {
        Failure { is_temporary: true, ..self }
    }

    /// Returns true if the same request may succeed after a restart of meshd.
    pub(crate) fn is_temporary(&self) -> bool {
        self.is_temporary
    }

    /// Returns the message without the hint.
    pub(crate) fn sentence(&self) -> &str {
        &self.message
    }

    /// Returns the message and the hint.
    pub(crate) fn parts(&self) -> (&str, &str) {
        (&self.message, &self.hint)
    }

    /// Returns true if the reader of standard output has closed it.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.output == Some(io::ErrorKind::BrokenPipe)
    }

    /// Returns true if standard output accepts no data, so that a repetition is useless.
    pub(crate) fn is_of_output(&self) -> bool {
        self.output.is_some()
    }
}

impl From<Faults> for Failure {
    /// Converts faults of local files and shows the line of each fault.
    fn from(faults: Faults) -> Self {
        let shown =
            faults.0.iter().take(MAX_FAULTS).map(|fault| format!("{fault}{}", faulty_line(fault)));
        let mut shown: Vec<String> = shown.collect();
        if faults.0.len() > MAX_FAULTS {
            shown.push(format!("{} more faults", faults.0.len() - MAX_FAULTS));
        }
        Failure { faults: Some(shown.join("\n")), ..Failure::new("", "") }
    }
}

/// Returns the faulty line with its number; empty if the line cannot be shown. Cloud-init data is
/// never shown.
fn faulty_line(fault: &Fault) -> String {
    let bytes = read_regular(&fault.file, meshd_config::reader::MAX_FILE).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let mut before = text.lines().take(fault.line);
    let is_shown = fault.line > 0 && !before.clone().any(|line| line.contains("cloud_init"));
    match before.nth(fault.line.saturating_sub(1)).filter(|_| is_shown) {
        Some(line) => {
            let shown: String = line.trim_end().replace('\t', " ").chars().take(MAX_LINE).collect();
            format!("\n  {} | {}", fault.line, clean(&shown))
        }
        None => String::new(),
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::without_hint(&*error)
    }
}

impl From<LabError> for Failure {
    /// The message of an error may be followed by the end of a log.
    fn from(error: LabError) -> Self {
        let Failure { message, hint, .. } = Failure::of(&error);
        let (message, log) = message.split_once('\n').unwrap_or((message.as_str(), ""));
        Failure { log: log.to_owned(), ..Failure::new(message, hint) }
    }
}

impl From<DemoError> for Failure {
    fn from(error: DemoError) -> Self {
        Failure::of(&error)
    }
}

impl From<io::Error> for Failure {
    /// Converts errors of standard output only. Other errors need the name of the failed operation.
    fn from(error: io::Error) -> Self {
        Failure {
            output: Some(error.kind()),
            ..Failure::new(format!("cannot write to standard output: {error}"), "")
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(faults) = &self.faults {
            return f.write_str(faults);
        }
        // Words of the operator, of nodes and of files add no line.
        write!(f, "error: {}", one_line(&self.message))?;
        if !self.log.is_empty() {
            write!(f, "\n{}", self.log)?;
        }
        if !self.hint.is_empty() {
            write!(f, "\n  hint: {}", one_line(&self.hint))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open a; b")]
    struct Outer(#[source] io::Error);

    meshd_types::hints!(Outer { _ => "look at its mode"; });

    #[test]
    fn failure_has_message_cause_and_hint() {
        let failure = Failure::of(&Outer(io::Error::other("disk on fire")));
        assert_eq!(
            failure.to_string(),
            "error: cannot open a; b: disk on fire\n  hint: look at its mode"
        );
    }

    #[test]
    fn words_with_control_characters_add_no_line_and_are_shown_escaped() {
        let failure = Failure::new("there is no profile `\u{1b}[31m\nok`", "\u{7}");
        let shown = "error: there is no profile `\\u{1b}[31m\\nok`\n  hint: \\u{7}";
        assert_eq!(failure.to_string(), shown);
        let log = "one line\nanother".to_owned();
        let ended = LabError::Failed { program: "meshd".to_owned(), detail: log };
        assert!(Failure::from(ended).to_string().contains("one line\nanother"));
    }

    #[test]
    fn file_fault_shows_its_line_but_no_cloud_init_data() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("vm.toml");
        fs::write(&file, "name = \"a\"\nvcpu = 2\n[cloud_init]\nuser_dat = \"password\"\n")
            .unwrap();
        let fault = |line| Fault {
            line,
            key: "vcpu".into(),
            ..Fault::of_file(&file, "unknown key", "use vcpus")
        };
        let shown = Failure::from(Faults(vec![fault(2), fault(4)])).to_string();
        let path = file.display();
        let hidden = format!("{path}:4: vcpu: unknown key\n  hint: use vcpus");
        assert_eq!(
            shown,
            format!("{path}:2: vcpu: unknown key\n  hint: use vcpus\n  2 | vcpu = 2\n{hidden}")
        );
        assert_eq!(Failure::of_remote(&Faults(vec![fault(4)])).to_string(), hidden);
        assert_eq!(
            Failure::from(Faults(vec![fault(9)])).to_string().lines().count(),
            2,
            "no such line"
        );
    }

    #[test]
    fn endless_faults_and_lines_of_an_author_are_cut() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("overlay.toml");
        fs::write(&file, "a = ".to_owned() + &"[".repeat(100_000)).unwrap();
        let fault = Fault { line: 1, ..Fault::of_file(&file, "unknown key", "") };
        let shown = Failure::from(Faults(vec![fault; MAX_FAULTS + 7])).to_string();
        assert!(
            shown.ends_with("\n7 more faults") && shown.len() < 100_000,
            "{} bytes",
            shown.len()
        );
    }
}
