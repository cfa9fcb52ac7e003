//! Quotes values in iPXE scripts. Every value passes through here.
//!
//! iPXE gives meaning to line ends, blanks, quotes, backslashes, `${`, a `#` that begins a word, and the words `||`, `&&`
//! and `;`. None of them passes, so a value is always part of the one command that it was written into.

/// The longest text that a script shows to people, in characters.
const MAX_TEXT: usize = 400;
/// The longest single word, in characters: a kernel argument or a URL.
pub const MAX_WORD: usize = 512;

/// Beside letters and digits. `&`, `|`, `;`, `#`, `$`, `{`, `}`, quotes and backslash are missing on purpose.
const SAFE_MARKS: &str = "-_.,:=/@+()!*~%[]?";

fn is_safe(c: char) -> bool {
    c.is_ascii_alphanumeric() || SAFE_MARKS.contains(c)
}

/// Words for people, on one line: quotes vanish, other unsafe characters become `?`, runs of blanks become one.
pub fn ipxe_text(text: &str) -> String {
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

/// One word, exactly as it is, or `None` if it cannot stand in a script: changing an argument would change what boots.
pub fn ipxe_word(word: &str) -> Option<&str> {
    // A word that begins with `--` would be an option of the iPXE command that it is given to.
    let fits = !word.is_empty() && word.len() <= MAX_WORD && !word.starts_with("--");
    (fits && word.chars().all(is_safe)).then_some(word)
}
