//! Runs external programs without a shell.

use crate::LabError;
use std::process::{Command, Output, Stdio};

/// Maximum length of a failed program's output in an error, in characters.
const DETAIL_LIMIT: usize = 600;

/// Returns the program with its arguments, for messages.
pub fn command_line(command: &Command) -> String {
    let program = command.get_program().to_string_lossy().into_owned();
    command.get_args().fold(program, |line, arg| line + " " + &arg.to_string_lossy())
}

/// Runs a program and returns its output; the error of a failure contains its last output.
pub fn run(command: &mut Command) -> Result<Output, LabError> {
    let spawned = command.stdin(Stdio::null()).output();
    let output =
        spawned.map_err(|source| LabError::Spawn { program: command_line(command), source })?;
    if output.status.success() {
        return Ok(output);
    }
    Err(LabError::Failed { program: command_line(command), detail: detail(&output) })
}

fn detail(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim();
    let skip = text.chars().count().saturating_sub(DETAIL_LIMIT);
    let words: String = text.chars().skip(skip).collect();
    if words.is_empty() { output.status.to_string() } else { words }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_failure_names_program_and_output() {
        let error = run(Command::new("ls").arg("/does/not/exist")).expect_err("no such folder");
        let text = error.to_string();
        assert!(text.starts_with("`ls /does/not/exist` failed: "), "{text}");
        assert!(text.contains("No such file"), "{text}");
    }
}
