//! Output of programs as plain text.

use meshd_types::{failpoint, is_misleading};

/// Returns false for characters that a page omits from foreign text: control characters, and
/// characters that disguise other text.
pub(crate) fn is_shown(c: char) -> bool {
    !(c.is_control() || is_misleading(c) && failpoint::defends("ui-direction"))
}

/// Removes escape sequences, control characters and direction marks, so that none of them reaches
/// the browser. Keeps line ends and tabs.
pub(crate) fn visible(text: &str) -> String {
    without_escapes(text).chars().filter(|c| is_shown(*c) || matches!(c, '\n' | '\t')).collect()
}

/// Removes the control sequences of a terminal (ECMA-48).
fn without_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            out.push(c);
            continue;
        }
        match chars.next() {
            // Control sequence: parameters, then one final byte.
            Some('[') => drop(chars.by_ref().find(|c| ('\u{40}'..='\u{7e}').contains(c))),
            // Operating system command: until BEL, or until the next escape.
            Some(']') => {
                while chars.peek().is_some_and(|c| !matches!(c, '\u{7}' | '\u{1b}' | '\n')) {
                    chars.next();
                }
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_output_is_stripped_of_escape_sequences() {
        let hostile =
            "a\u{1b}[31mred\u{1b}[0m \u{1b}]0;title\u{7}b\r\n\u{1b}[2J<script>\u{0}c\u{9b}d";
        assert_eq!(visible(hostile), "ared b\n<script>cd");
        assert_eq!(visible("\u{1b}"), "");
        assert_eq!(visible("\u{1b}["), "");
        assert_eq!(visible("serial \u{202e}321\u{202c}\u{feff}\u{2066}x\u{2069}"), "serial 321x");
    }
}
