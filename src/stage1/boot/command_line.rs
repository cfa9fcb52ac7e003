//! Arguments on the kernel's command line. Pure and total.

/// Returns the value of `NAME=`; the last one counts, as it does for the kernel.
pub fn argument<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let value = |word: &'l str| word.strip_prefix(name)?.strip_prefix('=');
    line.split_ascii_whitespace().rev().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_value_of_an_argument_counts() {
        let line = "quiet modloop=a BOOTIF=01-02 modloop=http://x/?a=b xmodloop=c modloops=d\n";
        assert_eq!(argument(line, "modloop"), Some("http://x/?a=b"));
        assert_eq!(argument(line, "BOOTIF"), Some("01-02"));
        assert_eq!(argument(line, "quiet"), None);
        assert_eq!(argument("a=", "a"), Some(""));
    }
}
