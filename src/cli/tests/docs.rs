//! Tests that the program accepts every command of the operator documentation.

use crate::cli::Cli;
use clap::{
    Parser as _,
    error::{ContextKind, ErrorKind},
};
use std::{fs, path::PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn pages() -> Vec<PathBuf> {
    let folder = fs::read_dir(PathBuf::from(ROOT).join("docs/operations"))
        .expect("the operator pages")
        .flatten();
    let mut pages: Vec<PathBuf> = folder.map(|entry| entry.path()).collect();
    pages.extend(
        ["README.md", "docs/overlays.md", "docs/bundles.md", "docs/security.md"]
            .map(|page| PathBuf::from(ROOT).join(page)),
    );
    pages.sort();
    pages
}

/// Commands in code blocks and in code spans of a page.
fn commands(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in page.lines() {
        match line.strip_prefix("    ") {
            Some(code) => found.extend(
                code.split_once("meshd ")
                    .filter(|(before, _)| is_prefix(before))
                    .map(|(_, rest)| rest),
            ),
            None => found.extend(
                line.split('`').skip(1).step_by(2).filter_map(|span| span.strip_prefix("meshd ")),
            ),
        }
    }
    found.into_iter().map(words_only).collect()
}

/// Prefixes of a command: nothing, `sudo`, variables.
fn is_prefix(text: &str) -> bool {
    text.split_whitespace().all(|word| word == "sudo" || word.contains('='))
}

/// Without the comment, the redirection and what follows in the shell.
fn words_only(command: &str) -> String {
    let end = [" #", " >", " |", " &&", ";"].iter().filter_map(|mark| command.find(mark)).min();
    command[..end.unwrap_or(command.len())].trim().to_owned()
}

/// Splits words like the shell. Takes the first alternative and includes optional words.
fn split(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    for letter in command.chars() {
        match (letter, quote) {
            ('"' | '\'', None) => quote = Some(letter),
            (letter, Some(open)) if letter == open => quote = None,
            (' ', None) => words.push(std::mem::take(&mut word)),
            ('[' | ']', None) => {}
            (letter, _) => word.push(letter),
        }
    }
    words.push(word);
    let first = |word: String| match word.split_once('|') {
        Some((first, _)) if !first.is_empty() => first.to_owned(),
        _ => word,
    };
    words
        .into_iter()
        .filter(|word| !word.is_empty() && word != "..." && word != "|")
        .map(first)
        .collect()
}

/// True if the value that was refused is a word for a value, such as `UUID`.
fn is_placeholder(error: &clap::Error) -> bool {
    let value = error.get(ContextKind::InvalidValue).map(ToString::to_string).unwrap_or_default();
    !value.is_empty() && value.chars().all(|letter| letter.is_ascii_uppercase())
}

#[test]
fn documented_commands_are_parsed() {
    let mut faults = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        for command in commands(&text) {
            count += 1;
            let words = ["meshd".to_owned()].into_iter().chain(split(&command));
            let Err(error) = Cli::try_parse_from(words) else { continue };
            // A span may name a verb without what it needs.
            let is_short = matches!(
                error.kind(),
                ErrorKind::MissingRequiredArgument
                    | ErrorKind::MissingSubcommand
                    | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                    | ErrorKind::DisplayHelp
            );
            if !is_short && !is_placeholder(&error) {
                let why = error.to_string().lines().next().unwrap_or_default().to_owned();
                faults.push(format!("{}: meshd {command}: {why}", page.display()));
            }
        }
    }
    assert!(count > 150, "only {count} commands were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
