//! Replaces characters that a terminal would execute, or that disguise other text.

use meshd_types::{failpoint, is_misleading};

/// Replaces control characters and direction marks in a text of one line.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(clean_char).collect()
}

/// Replaces control characters and direction marks. Keeps tabs and line ends, also those for a raw
/// terminal.
pub(super) fn clean_lines(text: &str) -> String {
    let mut chars = text.chars().peekable();
    let mut shown = String::with_capacity(text.len());
    while let Some(c) = chars.next() {
        let is_kept = matches!(c, '\n' | '\t') || c == '\r' && chars.peek() == Some(&'\n');
        shown.push(if is_kept { c } else { clean_char(c) });
    }
    shown
}

/// Returns U+FFFD for a character that a terminal would execute, or that disguises other text.
pub(super) fn clean_char(c: char) -> char {
    let is_executed = c.is_control() && failpoint::defends("cli-filter");
    let is_hidden = is_misleading(c) && failpoint::defends("ui-direction");
    if is_executed || is_hidden { '\u{fffd}' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_text_is_stripped_of_control_and_direction_characters() {
        assert_eq!(clean("a\u{1b}[2J \u{202e}321\u{2069}é"), "a\u{fffd}[2J \u{fffd}321\u{fffd}é");
    }

    #[test]
    fn message_keeps_line_ends_and_replaces_other_control_characters() {
        let shown = clean_lines("one\ttwo\r\nthree\rfour\u{9b}2J\u{7}\n");
        assert_eq!(shown, "one\ttwo\r\nthree\u{fffd}four\u{fffd}2J\u{fffd}\n");
    }
}
