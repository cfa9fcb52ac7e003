//! Removes terminal escapes from serial output.

/// Removes escape sequences and control characters. Returns one line for each painted line.
pub fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => skip_escape(&mut chars),
            '\n' => out.push('\n'),
            '\t' => out.push(' '),
            // A lone form feed or carriage return repaints the line; keep the overpainted text as a
            // line, too.
            '\r' if chars.peek() != Some(&'\n') && !out.ends_with('\n') => out.push('\n'),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

/// Skips the rest of an escape sequence (ECMA-48): `ESC [ parameters final`, or two characters.
fn skip_escape(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    if chars.next() != Some('[') {
        return;
    }
    for c in chars.by_ref() {
        if ('\x40'..='\x7e').contains(&c) {
            return;
        }
    }
}

/// Splits a serial log at the last start of a kernel. The first part is empty if the machine
/// started at most once. A machine that was reset in operation reports the cause in the first part.
pub fn before_and_since_start(text: &str) -> (&str, &str) {
    const START: &str = "Linux version ";
    match text.rfind(START) {
        Some(at) if text[..at].contains(START) => text.split_at(at),
        _ => ("", text),
    }
}

/// Returns the last `count` lines that are not empty.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn serial_escape_sequences_become_plain_lines() {
        let painted = b"\x1b[2J\x1b[01;01H>>Start PXE over IPv4.\r\n  Station IP\x1b[0m\r ok\x07\n";
        assert_eq!(plain(painted), ">>Start PXE over IPv4.\n  Station IP\n ok\n");
    }

    #[test]
    fn serial_log_of_restarted_machine_is_split_at_restart() {
        let once = "iPXE\nLinux version 6\na\n";
        assert_eq!(before_and_since_start(once), ("", once));
        let again = format!("{once}Triple fault?\niPXE\nLinux version 6\nb\n");
        let (before, since) = before_and_since_start(&again);
        assert_eq!(
            (last_lines(before, 2), since),
            ("Triple fault?\niPXE".to_owned(), "Linux version 6\nb\n")
        );
    }

    #[test]
    fn last_lines_skip_blank_lines() {
        assert_eq!(last_lines("a\n\nb\n \nc\n\n", 2), "b\nc");
        assert_eq!(last_lines("", 2), "");
    }

    proptest! {
        #[test]
        fn plain_text_of_random_bytes_has_no_escape(junk: Vec<u8>) {
            prop_assert!(!plain(&junk).contains('\x1b'));
        }
    }
}
