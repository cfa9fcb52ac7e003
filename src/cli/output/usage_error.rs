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
const SYNONYMS: [(&[&str], &[&str]); 9] = [
    (&["delete", "remove", "rm", "del", "destroy", "erase"], &["delete", "remove"]),
    (&["ls", "get", "status"], &["list", "show"]),
    (&["describe", "inspect", "info", "get", "status"], &["show"]),
    (&["add", "new", "define"], &["create", "add", "new"]),
    (&["log", "journal"], &["logs"]),
    (&["shutdown", "poweroff", "kill"], &["stop", "cancel"]),
    (&["cordon"], &["drain"]),
    (&["uncordon"], &["resume"]),
    (&["ssh", "run", "sh"], &["exec"]),
];

/// Prints help, a version or an error. Help that cannot be written is an error.
pub(crate) fn print(error: Error, words: &[OsString]) -> ExitCode {
    let error = with_own_suggestions(in_one_line(error, words), words);
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

/// Replaces and removes suggestions of clap that mislead.
fn with_own_suggestions(mut error: Error, words: &[OsString]) -> Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand => suggest(&mut error, words),
        ErrorKind::UnknownArgument => {
            remove_far_guess(&mut error, ContextKind::InvalidArg, ContextKind::SuggestedArg);
            // How to pass an option as a value: a mistyped option is no name of a node.
            error.remove(ContextKind::Suggested);
        }
        ErrorKind::InvalidValue => {
            remove_far_guess(&mut error, ContextKind::InvalidValue, ContextKind::SuggestedValue);
        }
        _ => {}
    }
    error
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

/// Removes a suggestion of clap that has little in common with the typed word: `--name` is no
/// `--no-headers`.
fn remove_far_guess(error: &mut Error, typed: ContextKind, suggested: ContextKind) {
    let first = |value: &ContextValue| match value {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => texts.first().cloned(),
        _ => None,
    };
    let (Some(typed), Some(guess)) =
        (error.get(typed).and_then(first), error.get(suggested).and_then(first))
    else {
        return;
    };
    // `--option <VALUE>` has its value in the suggestion.
    let word = |text: &str| {
        let name = text.trim_start_matches('-').split([' ', '=']).next();
        name.unwrap_or_default().to_owned()
    };
    if nearest(&word(&typed), [word(&guess).as_str()]).is_none() {
        error.remove(suggested);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = Cli::try_parse_from(&words).unwrap_err();
        with_own_suggestions(error, &words).render().to_string()
    }

    #[test]
    fn option_is_suggested_only_if_it_is_near() {
        assert!(shown("meshd node list --srt name").contains("'--sort"));
        let far = shown("meshd node list --name gpu001");
        assert!(!far.contains("tip:"), "{far}");
    }
}
