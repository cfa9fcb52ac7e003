//! Filter of foreign text that arrives in pieces: escape sequences and characters may be split
//! between two pieces.

use super::clean::clean_char;
use anstream::adapter::StripBytes;
use std::{mem, str};

/// Removes escape sequences. Replaces other control characters and bytes that are not UTF-8 by
/// U+FFFD. Keeps tabs and line ends; a carriage return, which would hide the text before it, starts
/// a new line.
#[derive(Default)]
pub(crate) struct TextFilter {
    escapes: StripBytes,
    /// Beginning of a character that the next piece completes.
    partial: Vec<u8>,
    after_return: bool,
    is_changed: bool,
}

impl TextFilter {
    /// Returns the text of the next piece.
    pub(crate) fn next(&mut self, piece: &[u8]) -> String {
        let mut shown = String::with_capacity(piece.len());
        for line in piece.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = line.strip_suffix(b"\n").map_or((line, false), |text| (text, true));
            let before = self.partial.len();
            for printable in self.escapes.strip_next(text) {
                self.partial.extend_from_slice(printable);
            }
            self.is_changed |= self.partial.len() - before != text.len();
            self.decode(ends, &mut shown);
            if ends {
                shown.push('\n');
                self.is_changed |= mem::take(&mut self.after_return);
                // An unfinished sequence must not hide the next line.
                self.escapes = StripBytes::new();
            }
        }
        shown
    }

    /// Returns true if the text differs from the bytes.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed || !self.partial.is_empty()
    }

    /// Decodes the collected bytes. Keeps the beginning of a last character unless the line ends.
    fn decode(&mut self, line_ends: bool, shown: &mut String) {
        let bytes = mem::take(&mut self.partial);
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            chunk.valid().chars().for_each(|c| self.push(c, shown));
            let invalid = chunk.invalid();
            let is_cut = str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if is_cut && chunks.peek().is_none() && !line_ends {
                self.partial = invalid.to_vec();
            } else if !invalid.is_empty() {
                self.is_changed = true;
                self.push(char::REPLACEMENT_CHARACTER, shown);
            }
        }
    }

    fn push(&mut self, c: char, shown: &mut String) {
        if mem::take(&mut self.after_return) {
            self.is_changed = true;
            shown.push('\n');
        }
        match c {
            '\r' => self.after_return = true,
            '\t' => shown.push(c),
            c => {
                let clean = clean_char(c);
                self.is_changed |= clean != c;
                shown.push(clean);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str =
        "a\u{1b}[31mred\u{1b}[0m \u{1b}]0;title\u{7}é\tb\r\nover\rwritten \u{9b}2J\u{202e}c\u{8}\n";
    const SHOWN: &str = "ared é\tb\nover\nwritten \u{fffd}2J\u{fffd}c\n";

    #[test]
    fn split_escape_sequence_is_removed_at_every_boundary() {
        for at in 0..HOSTILE.len() {
            let (first, second) = HOSTILE.as_bytes().split_at(at);
            let mut filter = TextFilter::default();
            assert_eq!(filter.next(first) + &filter.next(second), SHOWN, "split at {at}");
            assert!(filter.is_changed());
        }
    }

    #[test]
    fn unfinished_sequence_hides_no_later_line() {
        assert_eq!(
            TextFilter::default().next(b"\x1b]0;never\nnext\n\x1b[\nlast"),
            "\nnext\n\nlast"
        );
    }

    #[test]
    fn plain_text_is_unchanged_and_other_bytes_are_reported() {
        let mut filter = TextFilter::default();
        assert_eq!(filter.next("plain é 文\n\tx".as_bytes()), "plain é 文\n\tx");
        assert!(!filter.is_changed());
        assert_eq!(filter.next(b"a\xff\xc3(b"), "a\u{fffd}(b");
        assert!(filter.is_changed());
    }
}
