//! Prints one value as a table, JSON or YAML.

pub(crate) use super::{clean::clean, writer::write};

use super::{given_options::with_given_options, writer::write_message};
use crate::cli::Failure;
use clap::{Args, ValueEnum};
use comfy_table::{ContentArrangement, Table, presets};
use meshd_types::{Timestamp, is_misleading};
use serde::Serialize;
use std::{
    io::IsTerminal as _,
    time::{Duration, SystemTime},
};

/// Output formats of `-o`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people; may change in any release
    #[default]
    Table,
    /// For programs
    Json,
    /// For programs and people
    Yaml,
}

/// Output options of a command that prints data
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Output {
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
    /// Print JSON, as -o json does
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

impl Output {
    /// Returns the selected output format.
    pub(crate) fn format(self) -> Format {
        if self.json { Format::Json } else { self.output }
    }

    /// Prints a value. Calls `table` only for the table format.
    pub(crate) fn print<T: Serialize>(
        self,
        value: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let text = match self.format() {
            Format::Table => table(value),
            Format::Json => json(value)?,
            Format::Yaml => yaml(value)?,
        };
        write(&text)
    }

    /// Prints one of several values that arrive one after another: as one line of JSON, or as one
    /// YAML document.
    pub(crate) fn print_one<T: Serialize>(
        self,
        value: &T,
        line: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let text = match self.format() {
            Format::Table => line(value) + "\n",
            Format::Json => {
                escape_json(
                    &serde_json::to_string(value).map_err(|error| Failure::without_hint(&error))?,
                ) + "\n"
            }
            Format::Yaml => format!("---\n{}", yaml(value)?),
        };
        write(&text)
    }
}

/// Formats a value as indented JSON with a line break at the end.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Failure> {
    Ok(escape_json(
        &serde_json::to_string_pretty(value).map_err(|error| Failure::without_hint(&error))?,
    ) + "\n")
}

/// Formats a value as YAML.
pub(crate) fn yaml(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_norway::to_string(value).map_err(|error| Failure::without_hint(&error))?;
    // A plain scalar has no escapes; every JSON document is a YAML document.
    if !text.chars().any(is_unsafe) {
        return Ok(text);
    }
    let text =
        serde_json::to_string_pretty(value).map_err(|error| Failure::without_hint(&error))?;
    Ok(escape(&text, |c| format!("\\U{:08x}", u32::from(c))) + "\n")
}

/// Escapes characters that a terminal would execute, and those that disguise other text. They occur
/// only within strings.
fn escape(json: &str, escaped: impl Fn(char) -> String) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if is_unsafe(c) { text += &escaped(c) } else { text.push(c) }
    }
    text
}

fn escape_json(json: &str) -> String {
    escape(json, |c| {
        c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
    })
}

fn is_unsafe(c: char) -> bool {
    c.is_control() && c != '\n' || is_misleading(c)
}

/// Formats a table without borders; two spaces separate the columns.
pub(crate) fn table<const N: usize>(
    head: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    table_of(&head, rows)
}

/// As [`table`], with columns that are chosen at run time. Without a head, the table has no line
/// with the names of its columns.
pub(crate) fn table_of<R: IntoIterator<Item = String>>(
    head: &[&str],
    rows: impl IntoIterator<Item = R>,
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if !head.is_empty() {
        table.set_header(head.iter().map(|name| name.to_uppercase()));
    }
    for row in rows {
        let cells = row.into_iter();
        table.add_row(cells.map(|cell| match cell.as_str() {
            "" => "-".to_owned(),
            cell => clean(cell),
        }));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

/// Formats one name and value per line. Omits empty values.
pub(crate) fn fields<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let fields: Vec<_> = fields.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 2;
    fields.iter().map(|(name, value)| format!("{name:<width$}{}\n", clean(value))).collect()
}

/// Maximum width of wrapped text, in columns.
const WIDTH: usize = 98;

/// Wraps a text at [`WIDTH`] columns and indents each line. Its commands have the options of the
/// caller.
pub(crate) fn wrapped(text: &str, indent: usize) -> String {
    let mut out = String::new();
    let mut line = String::new();
    let clean = clean(&with_given_options(text));
    for word in clean.split_whitespace() {
        if !line.is_empty() && indent + line.chars().count() + 1 + word.chars().count() > WIDTH {
            out += &format!("{:indent$}{line}\n", "");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if line.is_empty() { out } else { format!("{out}{:indent$}{line}\n", "") }
}

/// Formats a duration with at most two units, such as `1.5s`, `1m 30s`, `3h 05m` or `12d 3h`.
pub(crate) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let millis = span.subsec_millis();
    match seconds {
        0..60 => format!("{seconds}.{}s", millis / 100),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Formats the time between `at` and `now`.
pub(crate) fn ago(at: Timestamp, now: Timestamp) -> String {
    let past = now.since(at);
    if past.as_secs() < 60 {
        format!("{}s ago", past.as_secs())
    } else {
        format!("{} ago", span(past))
    }
}

/// Formats a size, such as `12.3 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = UNITS.into_iter().find(|(size, _)| bytes >= *size);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(size, name)| format!("{}.{} {name}", bytes / size, bytes % size * 10 / size),
    )
}

/// Returns the JSON name of a value, such as an enum variant.
pub(crate) fn word(value: &impl Serialize) -> String {
    let word = serde_json::to_value(value).ok();
    word.and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Returns the current time of this machine.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Reads an answer from the terminal. Fails without a terminal.
pub(crate) fn typed(question: &str) -> Result<String, Failure> {
    read_answer(question, "", ("aborted: no terminal to confirm the name", "use --confirm NAME"))
}

/// Error of a confirmation without a terminal.
const NO_TERMINAL: &str = "aborted: confirm with --yes when there is no terminal";

/// Requests confirmation. Fails without a terminal.
pub(crate) fn confirm(question: &str) -> Result<(), Failure> {
    let answer = read_answer(question, " [y/N]", (NO_TERMINAL, ""))?;
    let yes = matches!(answer.to_lowercase().as_str(), "y" | "yes");
    if yes { Ok(()) } else { Err(Failure::new("aborted", "")) }
}

/// Requests confirmation of an order for several objects by their number, which a habit does not
/// type. Fails without a terminal.
pub(crate) fn confirm_number(question: &str, count: usize) -> Result<(), Failure> {
    confirm_typed_number(question, count, (NO_TERMINAL, ""))
}

/// As [`confirm_number`]. `no_terminal` is the error without a terminal, a message and a hint.
pub(crate) fn confirm_typed_number(
    question: &str,
    count: usize,
    no_terminal: (&str, &str),
) -> Result<(), Failure> {
    let question = format!("{question}\nType the number {count} to confirm:");
    let answer = read_answer(&question, "", no_terminal)?;
    if answer == count.to_string() { Ok(()) } else { Err(Failure::new("aborted", "")) }
}

/// Reads an answer from the terminal. Without a terminal, fails with `error`, a message and a hint.
fn read_answer(question: &str, choices: &str, error: (&str, &str)) -> Result<String, Failure> {
    if !std::io::stdin().is_terminal() {
        // The question states the change that the command would have made.
        message!("{question}");
        return Err(Failure::new(error.0, error.1));
    }
    write_message(&format!("{question}{choices} "));
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.map_err(|cause| Failure::new(format!("cannot read the answer: {cause}"), error.1))?;
    Ok(answer.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_yaml_escape_what_a_terminal_executes() {
        let hostile = "a\u{1b}[2J\u{9b}1m\u{7f} \u{202e}321\u{e0041}é".to_owned();
        let json = json(&hostile).unwrap();
        let yaml = yaml(&hostile).unwrap();
        assert!(!(json.clone() + &yaml).chars().any(is_unsafe), "{json:?} {yaml:?}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), hostile);
        assert_eq!(serde_norway::from_str::<String>(&yaml).unwrap(), hostile);
    }
}
