//! Unicode characters that disguise text.

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
}
