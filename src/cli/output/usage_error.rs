//! Errors of the command line, with the verb that was probably meant, and help texts.

use super::writer::{write, write_message};
use crate::cli::Cli;
use clap::{
    Command, CommandFactory as _, Error, Parser as _,
    error::{ContextKind, ContextValue, ErrorKind},
};
use meshd_config::nearest;
use meshd_types::one_line;
use std::{ffi::OsString, process::ExitCode};

/// Verbs of other programs, each with the verbs of the same meaning here.
const SYNONYMS: [(&[&str], &[&str]); 10] = [
    (&["delete", "remove", "rm", "del", "destroy", "erase"], &["delete", "remove"]),
    (&["ls", "get", "status"], &["list", "show"]),
    (&["describe", "inspect", "info", "get", "status"], &["show"]),
    (&["add", "new", "define"], &["create", "add", "new"]),
    (&["log", "journal"], &["logs"]),
    (&["shutdown", "poweroff", "kill"], &["stop", "cancel"]),
    (&["cordon"], &["drain"]),
    (&["uncordon"], &["resume"]),
    (&["ssh", "sh", "login"], &["shell"]),
    (&["run"], &["exec"]),
];

/// Prints help, a version or an error. Help that cannot be written is an error.
pub(crate) fn print(error: Error, words: &[OsString]) -> ExitCode {
    let mut error = in_one_line(error, words);
    if error.kind() == ErrorKind::InvalidSubcommand {
        suggest(&mut error, words);
    }
    if error.use_stderr() {
        write_message(&error.render().to_string());
        return ExitCode::from(2);
    }
    match write(&error.render().to_string()) {
        Err(failure) if !failure.is_broken_pipe() => {
            failure.print();
            failure.code()
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Returns the error for the same words without control characters: clap prints words as they are,
/// and a line feed in one would forge a line of the terminal or of a log.
fn in_one_line(error: Error, words: &[OsString]) -> Error {
    let lines: Vec<OsString> =
        words.iter().map(|word| one_line(&word.to_string_lossy()).into_owned().into()).collect();
    if lines == words {
        return error;
    }
    let message = "a word of the command line has control characters, or is not UTF-8";
    Cli::try_parse_from(lines)
        .err()
        .unwrap_or_else(|| Cli::command().error(ErrorKind::InvalidValue, message))
}

/// Replaces the suggestion of clap, which compares letters only: `delete` is near `release`, and no
/// verb of that meaning.
fn suggest(error: &mut Error, words: &[OsString]) {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand).cloned()
    else {
        return;
    };
    error.remove(ContextKind::SuggestedSubcommand);
    if let Some(verb) = similar_verb(&Cli::command(), &typed, words) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![verb]));
    }
}

/// Returns the verb with the meaning or the spelling of `typed`, in the command that the words
/// before it name.
pub(crate) fn similar_verb(command: &Command, typed: &str, words: &[OsString]) -> Option<String> {
    let before =
        words.iter().skip(1).filter_map(|word| word.to_str()).take_while(|word| *word != typed);
    let group =
        before.fold(command, |command, word| command.find_subcommand(word).unwrap_or(command));
    let verbs: Vec<&str> =
        group.get_subcommands().filter(|verb| !verb.is_hide_set()).map(Command::get_name).collect();
    let meant =
        SYNONYMS.iter().filter(|(words, _)| words.contains(&typed)).flat_map(|(_, here)| *here);
    let meant = meant.copied().find(|verb| verbs.contains(verb));
    meant.or_else(|| nearest(typed, verbs.iter().copied())).map(str::to_owned)
}
