//! Recorded text of a serial console until it is stored. Bounded: of a flood, the newest text stays.
//! Without capabilities of overlays: loaders print the URL, and the kernel prints its command line.

/// Maximum number of bytes that wait.
const MAX_WAITING: usize = 64 << 10;
/// Precedes the capability in a URL.
const OVERLAY: &[u8] = b"/overlay/";
/// Length of a capability, in hexadecimal digits.
const CAPABILITY: usize = 32;

/// Text that waits to be stored.
#[derive(Default)]
pub(super) struct ConsoleText {
    waiting: Vec<u8>,
    /// Number of bytes that were lost before it.
    lost: u64,
}

impl ConsoleText {
    /// Adds a piece.
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.waiting.extend_from_slice(piece);
        let surplus = self.waiting.len().saturating_sub(MAX_WAITING);
        self.waiting.drain(..surplus);
        self.lose(surplus);
    }

    /// Returns true if the text has to be stored before more is read.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_WAITING
    }

    /// Makes room, if there is none, by the older half of the text: it cannot be stored yet.
    pub(super) fn make_room(&mut self) {
        if self.is_full() {
            let older = self.waiting.len() / 2;
            self.waiting.drain(..older);
            self.lose(older);
        }
    }

    /// Counts bytes that were lost.
    pub(super) fn lose(&mut self, bytes: usize) {
        self.lost = self.lost.saturating_add(bytes as u64);
    }

    /// Takes the text, after a line about what was lost, and the number of its own bytes; `None` if
    /// there is none. `is_last` is false if more follows: then the beginning of a capability stays.
    pub(super) fn take(&mut self, is_last: bool) -> Option<(Vec<u8>, usize)> {
        let end = if is_last { self.waiting.len() } else { end_without_capability(&self.waiting) };
        if end == 0 {
            return None;
        }
        let own: Vec<u8> = self.waiting.drain(..end).collect();
        let (own, length) = (without_capabilities(&own), own.len());
        let lost = std::mem::take(&mut self.lost);
        let text = match lost {
            0 => own,
            lost => {
                let note = format!("\nmeshd: {lost} bytes of the console are missing\n");
                [note.into_bytes(), own].concat()
            }
        };
        Some((text, length))
    }
}

/// Returns where a capability begins that the next piece may continue; else the length of the text.
fn end_without_capability(text: &[u8]) -> usize {
    let first = text.len().saturating_sub(OVERLAY.len() + CAPABILITY);
    let is_open = |at: &usize| {
        let rest = &text[*at..];
        OVERLAY.starts_with(rest)
            || rest.strip_prefix(OVERLAY).is_some_and(|it| it.iter().all(u8::is_ascii_hexdigit))
    };
    (first..text.len()).find(is_open).unwrap_or(text.len())
}

/// Replaces the capabilities in URLs of overlays.
fn without_capabilities(text: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.windows(OVERLAY.len()).position(|part| part == OVERLAY) {
        let (before, after) = rest.split_at(at + OVERLAY.len());
        let digits = after.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        shown.extend_from_slice(before);
        shown.extend_from_slice(if digits > 0 { &b"..."[..] } else { b"" });
        rest = &after[digits..];
    }
    shown.extend_from_slice(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_text_stays_and_what_is_lost_is_noted_once() {
        let mut text = ConsoleText::default();
        assert_eq!(text.take(true), None);
        text.push(b"POST\r\n");
        assert_eq!(text.take(true), Some((b"POST\r\n".to_vec(), 6)));

        text.push(&vec![b'x'; MAX_WAITING]);
        text.push(b"Kernel panic");
        text.lose(88);
        let (stored, length) = text.take(true).expect("text");
        assert_eq!(length, MAX_WAITING);
        let stored = String::from_utf8(stored).expect("ASCII");
        assert!(stored.starts_with("\nmeshd: 100 bytes of the console are missing\nx"));
        assert!(stored.ends_with("xKernel panic"));
        text.push(b"end");
        assert_eq!(text.take(true), Some((b"end".to_vec(), 3)));
    }

    #[test]
    fn full_text_that_cannot_be_stored_loses_its_older_half() {
        let mut text = ConsoleText::default();
        text.push(&vec![b'a'; MAX_WAITING - 1]);
        text.make_room();
        assert!(!text.is_full());
        text.push(b"b");
        assert!(text.is_full());
        text.make_room();
        let (stored, length) = text.take(true).expect("text");
        assert_eq!(length, MAX_WAITING / 2);
        assert!(stored.ends_with(b"ab"));
    }

    #[test]
    fn capability_of_an_overlay_is_not_stored_however_its_text_is_split() {
        let capability = "00112233445566778899aabbccddeeff";
        let shown = format!("http://10.77.0.1:8080/overlay/{capability}... ok\r\n/overlay/ /over");
        for at in 0..=shown.len() {
            let (mut text, mut stored) = (ConsoleText::default(), Vec::new());
            for (piece, is_last) in [(&shown[..at], false), (&shown[at..], true)] {
                text.push(piece.as_bytes());
                stored.extend(text.take(is_last).into_iter().flat_map(|(text, _)| text));
            }
            let stored = String::from_utf8(stored).expect("ASCII");
            let expected = "http://10.77.0.1:8080/overlay/...... ok\r\n/overlay/ /over";
            assert_eq!(stored, expected, "split at {at}");
        }
    }
}
