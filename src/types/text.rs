//! Unicode characters that disguise text.

use crate::failpoint;
use std::{
    borrow::Cow,
    io::{self, Write},
};

/// Returns true for invisible characters that can make one serial number look like another. These
/// are direction marks, overrides and isolates of Unicode (UAX 9), zero-width characters, and tags.
pub fn is_misleading(c: char) -> bool {
    matches!(
        c,
        '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Returns the text as one line: control characters and [`is_misleading`] characters are escaped as
/// in a string literal of Rust (`\n`, `\u{1b}`). So a foreign name adds no line to a log or terminal,
/// and executes nothing there.
pub fn one_line(text: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| c.is_control() || is_misleading(c);
    if !text.contains(is_escaped) || !failpoint::defends("one-line") {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_escaped(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
    Cow::Owned(line)
}

/// Truncates a text to `max` bytes at a character boundary.
pub fn truncate(mut text: String, max: usize) -> String {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// Writes each event of a log as one line, see [`one_line`]. The writer above must write an event
/// with its line end in one call, as `tracing_subscriber::fmt` does.
#[derive(Debug)]
pub struct LogLines<W>(pub W);

impl<W: Write> Write for LogLines<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let body = text.strip_suffix('\n').unwrap_or(&text);
        self.0.write_all(format!("{}\n", one_line(body)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direction_marks_and_zero_width_characters_are_misleading() {
        for c in "\u{200b}\u{200f}\u{202a}\u{202e}\u{2066}\u{2069}\u{feff}\u{61c}\u{e0041}".chars()
        {
            assert!(is_misleading(c), "{c:?}");
        }
        for c in "aZ0-_ \u{a0}éß文א…\u{2010}\u{202f}\u{301}\u{fffd}🙂\n\t".chars() {
            assert!(!is_misleading(c), "{c:?}");
        }
    }

    #[test]
    fn text_of_several_lines_is_one_line() {
        assert_eq!(one_line("a\nb\u{1b}[2J\r\u{202e}\té"), "a\\nb\\u{1b}[2J\\r\\u{202e}\\té");
        assert!(matches!(one_line("né"), Cow::Borrowed("né")));
    }

    #[test]
    fn event_of_a_log_is_one_line_with_its_end() {
        let mut log = LogLines(Vec::new());
        log.write_all("INFO a\nb\n".as_bytes()).unwrap();
        log.write_all("INFO \u{202e}c\n".as_bytes()).unwrap();
        assert_eq!(log.0, "INFO a\\nb\nINFO \\u{202e}c\n".as_bytes());
    }
}
