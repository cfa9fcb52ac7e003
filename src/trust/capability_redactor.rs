//! Hides capabilities of overlays in text of machines: loaders print the URL of an overlay, and the
//! kernel prints its command line.
//!
//! A terminal of firmware wraps a URL by line ends, or by sequences that move the cursor. Neither
//! ends a match. The text may come in pieces of any size; the state has a fixed size.

use crate::overlay_capability::TEXT_LEN;

/// Precedes a capability in a URL.
const PATH: &[u8] = b"/overlay/";
/// Replaces a capability.
const MARK: &[u8] = b"...";
const ESCAPE: u8 = 0x1b;
/// Bytes of an escape sequence after which the rest is text: no terminal writes longer ones, and a
/// sequence whose end was lost must not hide what follows from the match.
const MAX_SEQUENCE: u8 = 24;

/// Position in an escape sequence (ECMA-48).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sequence {
    #[default]
    None,
    /// After `ESC`, and after the bytes between it and the final byte: `ESC ( B`.
    Escape(u8),
    /// After `ESC [`.
    Control(u8),
}

/// The part of a capability that a byte belongs to.
enum Part {
    None,
    FirstDigit,
    /// A further digit, or an escape sequence between two digits.
    Rest,
}

/// Replaces capabilities in a stream of text. A part of a capability is hidden, too.
#[derive(Debug, Default)]
pub struct CapabilityRedactor {
    /// Bytes of [`PATH`] that were seen.
    matched: usize,
    /// Digits of the capability that were seen.
    digits: usize,
    sequence: Sequence,
}

impl CapabilityRedactor {
    /// Returns the next piece of the text without capabilities. Everything else stays as it is.
    pub fn redact(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut shown = Vec::with_capacity(piece.len());
        for &byte in piece {
            match self.read(byte) {
                Part::None => shown.push(byte),
                Part::FirstDigit => shown.extend_from_slice(MARK),
                Part::Rest => {}
            }
        }
        shown
    }

    fn read(&mut self, byte: u8) -> Part {
        if self.is_of_sequence(byte) {
            return if self.digits == 0 { Part::None } else { Part::Rest };
        }
        if byte.is_ascii_control() {
            return Part::None;
        }
        if self.matched == PATH.len() {
            if byte.is_ascii_hexdigit() {
                return self.read_digit();
            }
            // The last byte of a path may be the first one of another.
            self.matched = usize::from(self.digits == 0);
            self.digits = 0;
        }
        self.matched = match byte {
            byte if byte == PATH[self.matched] => self.matched + 1,
            b'/' => 1,
            _ => 0,
        };
        Part::None
    }

    fn read_digit(&mut self) -> Part {
        self.digits += 1;
        let part = if self.digits == 1 { Part::FirstDigit } else { Part::Rest };
        if self.digits == TEXT_LEN {
            (self.matched, self.digits) = (0, 0);
        }
        part
    }

    /// Returns true if a byte belongs to an escape sequence. A slash never does: it may begin a
    /// path after a sequence whose end was lost.
    fn is_of_sequence(&mut self, byte: u8) -> bool {
        let (next, is_part) = match (self.sequence, byte) {
            (_, ESCAPE) => (Sequence::Escape(0), true),
            (Sequence::None, _) | (_, b'/') => (Sequence::None, false),
            (Sequence::Escape(MAX_SEQUENCE) | Sequence::Control(MAX_SEQUENCE), _) => {
                (Sequence::None, false)
            }
            (Sequence::Escape(0), b'[') => (Sequence::Control(0), true),
            (Sequence::Escape(length), b' '..=b'.') => (Sequence::Escape(length + 1), true),
            (Sequence::Control(length), b' '..=b'?') => (Sequence::Control(length + 1), true),
            (Sequence::Escape(_), b'0'..=b'~') | (Sequence::Control(_), b'@'..=b'~') => {
                (Sequence::None, true)
            }
            _ => (Sequence::None, false),
        };
        self.sequence = next;
        is_part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes with which a terminal wraps a line, the longest first.
    const WRAPS: [&str; 8] =
        ["\x1b[0;37;40m", "\x1b[25;1H", "\x1b(B", "\x1b[K", "\r\n", "\x1b7", "\n", "\0"];

    fn redacted(text: &str) -> String {
        String::from_utf8(CapabilityRedactor::default().redact(text.as_bytes())).expect("text")
    }

    #[test]
    fn capability_is_replaced_and_other_text_stays() {
        let capability = "00112233445566778899aabbccddeeff";
        for (text, expected) in [
            (format!("/overlay/{capability}/apkovl.tar.gz"), "/overlay/.../apkovl.tar.gz"),
            (format!("/overlay/{capability}... ok"), "/overlay/...... ok"),
            (format!("/overlay/overlay/{capability} /over"), "/overlay/overlay/... /over"),
            (format!("//overlay/{}", &capability[..9]), "//overlay/..."),
            (format!("/overlay/{capability}\r\ndecade"), "/overlay/...\r\ndecade"),
            (format!("\x1b[/overlay/{capability}"), "\x1b[/overlay/..."),
            (format!("\x1b(/overlay/{capability}"), "\x1b(/overlay/..."),
            // The end of the sequence was lost.
            (format!("/overlay/0\x1b[{}", &capability[1..]), "/overlay/..."),
        ] {
            assert_eq!(redacted(&text), expected, "{text:?}");
        }
        let other = "/overlay/ /overlays/ab /overlay /v1/overlay/x \x1b[1mab\x1b[0m";
        assert_eq!(redacted(other), other);
    }

    #[test]
    fn endless_escape_sequence_does_not_hide_a_capability_from_the_match() {
        let text = format!("\x1b[{}/overlay/{}", "1;".repeat(500), "ab".repeat(16));
        assert!(redacted(&text).ends_with("/overlay/..."));
        let text = format!("/overlay/a\x1b[{}", "1".repeat(500));
        let left = 500 - usize::from(MAX_SEQUENCE) - (TEXT_LEN - 1);
        assert_eq!(redacted(&text), format!("/overlay/...{}", "1".repeat(left)));
    }

    proptest! {
        #[test]
        fn wrapped_capability_is_hidden_in_pieces_of_any_size(
            capability in "[0-9a-f]{32}",
            wraps in prop::collection::vec(prop::option::weighted(0.2, 0..WRAPS.len()), 42),
            size in 1_usize..60,
        ) {
            let url = format!("x/overlay/{capability}");
            let wrapped = url.chars().zip(&wraps).map(|(letter, wrap)| {
                format!("{letter}{}", wrap.map_or("", |at| WRAPS[at]))
            });
            let text = format!("{}/apkovl dead", wrapped.collect::<String>());
            let mut redactor = CapabilityRedactor::default();
            let pieces = text.as_bytes().chunks(size).flat_map(|piece| redactor.redact(piece));
            let shown = String::from_utf8(pieces.collect()).expect("text");
            let shown = WRAPS.iter().fold(shown, |shown, wrap| shown.replace(wrap, ""));
            prop_assert_eq!(shown, "x/overlay/.../apkovl dead");
        }

        #[test]
        fn text_without_a_path_is_unchanged(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let text: Vec<u8> = text.into_iter().filter(|byte| *byte != b'/').collect();
            prop_assert_eq!(CapabilityRedactor::default().redact(&text), text);
        }

        #[test]
        fn pieces_of_any_text_give_what_the_whole_gives(
            text in "(/overlay/|/|o|[0-9a-f]|\x1b|\\[|;|\\(|\r\n| |é){0,60}",
            size in 1_usize..20,
        ) {
            let mut redactor = CapabilityRedactor::default();
            let pieces = text.as_bytes().chunks(size).flat_map(|piece| redactor.redact(piece));
            let pieces: Vec<u8> = pieces.collect();
            prop_assert_eq!(String::from_utf8(pieces).expect("text"), redacted(&text));
        }
    }
}
