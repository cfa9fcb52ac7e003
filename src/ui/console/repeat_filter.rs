//! Bounds REP (`CSI n b`, repeats the last character). The emulator obeys any count up to 65535,
//! one character at a time. Nine bytes of a guest would cost a millisecond.

use meshd_types::failpoint;

/// Maximum number of repetitions: one line. Programs use REP to fill at most one line.
const MAX_REPEATS: u16 = 80;
const CANCEL: u8 = 0x18;
const ESCAPE: u8 = 0x1b;

/// Parser state for the output of a guest. If the emulator's reading of a byte is unclear, the
/// filter treats the byte as part of a control sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ParserState {
    /// Text, and strings of other control functions: only ESC matters.
    #[default]
    Text,
    /// State after ESC.
    Escape,
    /// State within a control sequence, with its first parameter.
    Sequence { count: u16, is_first: bool, is_private: bool },
}

/// Passes the output of a guest through, with bounded counts. Sequences may be split between
/// pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct RepeatFilter(ParserState);

impl RepeatFilter {
    /// Returns the bytes for the emulator.
    pub(super) fn apply(&mut self, bytes: &[u8]) -> Vec<u8> {
        if !failpoint::defends("ui-repeat-count") {
            return bytes.to_vec();
        }
        let mut out = Vec::with_capacity(bytes.len());
        for byte in bytes {
            match self.0 {
                ParserState::Sequence { count, is_private: false, .. }
                    if *byte == b'b' && count > MAX_REPEATS =>
                {
                    // The emulator has read the count. Cancel that sequence and write another one.
                    out.push(CANCEL);
                    out.extend(format!("\x1b[{MAX_REPEATS}b").bytes());
                }
                _ => out.push(*byte),
            }
            self.0 = self.0.after(*byte);
        }
        out
    }
}

impl ParserState {
    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (_, ESCAPE) => ParserState::Escape,
            (_, CANCEL | 0x1a) => ParserState::Text,
            (ParserState::Text, _) => ParserState::Text,
            (ParserState::Escape, b'[') => {
                ParserState::Sequence { count: 0, is_first: true, is_private: false }
            }
            (ParserState::Escape, 0x20..=0x7e) | (ParserState::Sequence { .. }, 0x40..=0x7e) => {
                ParserState::Text
            }
            (ParserState::Sequence { count, is_first: true, is_private }, b'0'..=b'9') => {
                let count = count.saturating_mul(10).saturating_add(u16::from(byte - b'0'));
                ParserState::Sequence { count, is_first: true, is_private }
            }
            (ParserState::Sequence { count, is_private, .. }, b':' | b';') => {
                ParserState::Sequence { count, is_first: false, is_private }
            }
            (ParserState::Sequence { count, is_first, .. }, 0x20..=0x2f | 0x3c..=0x3f) => {
                ParserState::Sequence { count, is_first, is_private: true }
            }
            // Control characters, DEL and non-ASCII bytes do not change these states.
            (state, _) => state,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::terminal_screen::SIZE;
    use proptest::prelude::*;
    use vt100::Parser;

    /// Counts lines that scrolled off the screen. They measure the emulator's work for a guest.
    #[derive(Default)]
    struct ScrollCounter(usize);

    impl vt100::Callbacks for ScrollCounter {
        fn on_scroll(&mut self, _: vt100::capture::RowContents<'_>, _: bool) {
            self.0 += 1;
        }
    }

    fn emulator() -> Parser<ScrollCounter> {
        Parser::new_with_callbacks(SIZE.0, SIZE.1, 0, ScrollCounter::default())
    }

    /// Returns the number of lines that scroll off the screen with the filter.
    fn scrolled(pieces: &[&[u8]]) -> usize {
        let mut filter = RepeatFilter::default();
        let mut emulator = emulator();
        // The cursor is in the last cell of the screen, so that each line scrolls. REP has a
        // character to repeat.
        emulator.process(b"\x1b[24;80Ha");
        pieces.iter().for_each(|piece| emulator.process(&filter.apply(piece)));
        emulator.callbacks().0
    }

    #[test]
    fn repeat_count_is_limited_to_one_line() {
        for sequence in [
            "a\u{1b}[65535b",
            "a\u{1b}[81b",
            "a\u{1b}[0000000099999999b",
            "a\u{1b}[65535;1b",
            "a\u{1b}[65535:1;2b",
            "a\u{1b}[6\r5535b",
            "a\u{1b}\u{7f}[6\u{7f}5535b",
            "a\u{1b}\u{1b}[1;2\u{1b}[65535b",
            "a\u{1b}]0;title\u{1b}[65535b",
            "a\u{1b}P1$q\u{1b}[65535b",
            "a\u{1b}_x\u{1b}\n[65535b",
        ] {
            assert!(scrolled(&[sequence.as_bytes()]) <= 4, "{sequence:?}");
            for at in 1..sequence.len() {
                let (first, second) = sequence.as_bytes().split_at(at);
                assert!(scrolled(&[first, second]) <= 4, "{sequence:?} in two pieces at {at}");
            }
            let bytes: Vec<&[u8]> = sequence.as_bytes().chunks(1).collect();
            assert!(scrolled(&bytes) <= 4, "{sequence:?} byte by byte");
        }
    }

    #[test]
    fn output_without_large_repeat_is_unchanged() {
        for text in [
            "bbb [99b",
            "\u{1b}[80b",
            "\u{1b}[b",
            "\u{1b}[?1049h\u{1b}[999;999H",
            "\u{1b}[?99b",
            "\u{1b}(99b",
            "é\u{9b}99b",
        ] {
            assert_eq!(RepeatFilter::default().apply(text.as_bytes()), text.as_bytes(), "{text:?}");
        }
        assert_eq!(RepeatFilter::default().apply(b"\x1b[81bx"), b"\x1b[81\x18\x1b[80bx");
    }

    /// Generates parts of sequences that the emulator and the filter might read in different ways.
    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let common: [&[u8]; 5] = [b"\x1b[", b"\x1b", b"65535", b"b", b"a"];
        let rare = b"[90;:?< (!]PX^_\\\0\x07\n\x18\x1a\x7f\x80\x9b\xe2\xc3\xa9";
        let rare: Vec<&[u8]> = rare.chunks(1).collect();
        let part = prop_oneof![prop::sample::select(common.to_vec()), prop::sample::select(rare)];
        prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn hostile_output_scrolls_bounded_lines_per_byte(bytes in hostile(), at in 0usize..200) {
            let at = at.min(bytes.len());
            prop_assert!(scrolled(&[&bytes[..at], &bytes[at..]]) <= 8 + 2 * bytes.len());
        }

        #[test]
        fn output_with_small_repeat_counts_is_unchanged(
            text in "(\u{1b}\\[[?<]?[0-7]?[0-9]?(;[0-9]{1,3}){0,2}[@-z]|[ -~é\r\n]){0,60}"
        ) {
            prop_assert_eq!(RepeatFilter::default().apply(text.as_bytes()), text.as_bytes());
        }
    }
}
