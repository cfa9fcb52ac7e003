//! Quotes values in iPXE scripts. Every value of a script passes through this module.
//!
//! iPXE interprets line ends, blanks, quotes, backslashes, `${`, a `#` at the start of a word, and
//! the words `||`, `&&` and `;`. This module removes or rejects all of these, so a value cannot
//! leave its command.

/// Maximum length of a message in characters.
const MAX_TEXT: usize = 400;
/// Maximum length of a word in characters: a kernel argument or a URL.
const MAX_WORD: usize = 512;

/// Permitted characters besides letters and digits. `&`, `|`, `;`, `#`, `$`, `{`, `}`, quotes and
/// backslash are excluded on purpose.
const SAFE_MARKS: &str = "-_.,:=/@+()!*~%[]?";

fn is_safe(c: char) -> bool {
    c.is_ascii_alphanumeric() || SAFE_MARKS.contains(c)
}

/// Quotes a message: removes quotes, replaces other unsafe characters by `?`, and combines blanks.
pub(super) fn ipxe_text(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().filter(|c| !"`'\"".contains(*c)).take(MAX_TEXT) {
        match c {
            c if is_safe(c) => out.push(c),
            c if c.is_whitespace() || c.is_control() => {
                if !out.is_empty() && !out.ends_with(' ') {
                    out.push(' ');
                }
            }
            _ => out.push('?'),
        }
    }
    out.truncate(out.trim_end().len());
    out
}

/// Returns whether a word can stand in a script unchanged. An unsafe word is refused, because
/// changing an argument would change the boot.
pub(super) fn is_ipxe_word(word: &str) -> bool {
    // A word that begins with `--` would be an option of the iPXE command.
    let fits = !word.is_empty() && word.len() <= MAX_WORD && !word.starts_with("--");
    fits && word.chars().all(is_safe)
}
