//! Recorded text of a serial console until it is stored. Bounded: of a flood, the newest text stays.
//! Without capabilities of overlays: loaders print the URL, and the kernel prints its command line.

use meshd_trust::CapabilityRedactor;

/// Maximum number of bytes that wait.
const MAX_WAITING: usize = 64 << 10;

/// Text that waits to be stored.
#[derive(Default)]
pub(super) struct ConsoleText {
    redactor: CapabilityRedactor,
    waiting: Vec<u8>,
    /// Number of bytes that were lost before it.
    lost: u64,
}

impl ConsoleText {
    /// Adds a piece.
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.waiting.extend(self.redactor.redact(piece));
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
    /// there is none.
    pub(super) fn take(&mut self) -> Option<(Vec<u8>, usize)> {
        if self.waiting.is_empty() {
            return None;
        }
        let own = std::mem::take(&mut self.waiting);
        let length = own.len();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_text_stays_and_what_is_lost_is_noted_once() {
        let mut text = ConsoleText::default();
        assert_eq!(text.take(), None);
        text.push(b"POST\r\n");
        assert_eq!(text.take(), Some((b"POST\r\n".to_vec(), 6)));

        text.push(&vec![b'x'; MAX_WAITING]);
        text.push(b"Kernel panic");
        text.lose(88);
        let (stored, length) = text.take().expect("text");
        assert_eq!(length, MAX_WAITING);
        let stored = String::from_utf8(stored).expect("ASCII");
        assert!(stored.starts_with("\nmeshd: 100 bytes of the console are missing\nx"));
        assert!(stored.ends_with("xKernel panic"));
        text.push(b"end");
        assert_eq!(text.take(), Some((b"end".to_vec(), 3)));
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
        let (stored, length) = text.take().expect("text");
        assert_eq!(length, MAX_WAITING / 2);
        assert!(stored.ends_with(b"ab"));
    }

    #[test]
    fn capability_of_an_overlay_is_not_stored_however_its_text_is_split() {
        let capability = "00112233445566778899aabbccddeeff";
        let shown = format!("http://10.77.0.1:8080/overlay/{capability}... ok\r\n/overlay/ /over");
        for at in 0..=shown.len() {
            let mut text = ConsoleText::default();
            let mut stored = Vec::new();
            for piece in [&shown[..at], &shown[at..]] {
                text.push(piece.as_bytes());
                stored.extend(text.take().into_iter().flat_map(|(text, _)| text));
            }
            let stored = String::from_utf8(stored).expect("ASCII");
            let expected = "http://10.77.0.1:8080/overlay/...... ok\r\n/overlay/ /over";
            assert_eq!(stored, expected, "split at {at}");
        }
    }

    #[test]
    fn rest_of_a_capability_whose_path_was_lost_is_not_stored() {
        let mut text = ConsoleText::default();
        text.push(b"http://10.77.0.1:8080/overlay/0011223344556677");
        text.push(&[&b"8899aabbccddeeff"[..], &vec![b'x'; MAX_WAITING - 16]].concat());
        let (stored, _) = text.take().expect("text");
        let stored = String::from_utf8(stored).expect("ASCII");
        assert!(stored.contains("are missing\n8080/overlay/...xxx"), "{}", &stored[..80]);
    }
}
