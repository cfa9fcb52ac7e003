//! Shell patterns as in `modules.alias`: `*`, `?`, `[a-f]`, `[!0]`. Pure, in linear space.

/// Returns true if the whole text matches.
///
/// Each `*` is extended on a mismatch, so the time is at most the product of the lengths. Source:
/// fnmatch(3) without flags, which kmod uses.
pub fn matches(pattern: &str, text: &str) -> bool {
    let pattern = pattern.as_bytes();
    let text = text.as_bytes();
    let mut at = 0;
    let mut position = 0;
    // Position after the last `*`, and of the text that it does not cover yet.
    let mut last_star = None;
    while position < text.len() {
        match match_element(&pattern[at..], text[position]) {
            Element::Star => {
                at += 1;
                last_star = Some((at, position));
            }
            Element::Match(length) => {
                at += length;
                position += 1;
            }
            Element::Mismatch => match last_star.as_mut() {
                Some((after, covered)) => {
                    *covered += 1;
                    at = *after;
                    position = *covered;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

enum Element {
    Star,
    /// The element matches and has this length.
    Match(usize),
    Mismatch,
}

/// Compares the first element of a pattern with a byte.
fn match_element(pattern: &[u8], byte: u8) -> Element {
    match pattern {
        [b'*', ..] => Element::Star,
        [b'?', ..] => Element::Match(1),
        [b'[', rest @ ..] => match_set(rest, byte),
        [first, ..] if *first == byte => Element::Match(1),
        _ => Element::Mismatch,
    }
}

/// A set, after its `[`. A set without `]` matches nothing.
fn match_set(rest: &[u8], byte: u8) -> Element {
    let is_negated = matches!(rest.first(), Some(b'!' | b'^'));
    let members = &rest[usize::from(is_negated)..];
    // A `]` at the beginning is a member.
    let Some(end) = members.iter().skip(1).position(|member| *member == b']') else {
        return Element::Mismatch;
    };
    let members = &members[..=end];
    let mut found = false;
    let mut at = 0;
    while at < members.len() {
        if let [first, b'-', last, ..] = members[at..] {
            found |= (first..=last).contains(&byte);
            at += 3;
        } else {
            found |= members[at] == byte;
            at += 1;
        }
    }
    // `[`, the members and `]`.
    let length = members.len() + 2 + usize::from(is_negated);
    if found == is_negated { Element::Mismatch } else { Element::Match(length) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn modalias_matches_as_with_fnmatch() {
        let e1000 = "pci:v00008086d0000100Esv00001AF4sd00001100bc02sc00i00";
        for (pattern, text, expected) in [
            ("pci:v00008086d0000100Esv*sd*bc*sc*i*", e1000, true),
            ("pci:v00008086d0000100Fsv*sd*bc*sc*i*", e1000, false),
            ("pci:v*d*sv*sd*bc02sc00i*", e1000, true),
            ("pci:v*d*sv*sd*bc03sc*i*", e1000, false),
            ("virtio:d00000001v*", "virtio:d00000001v00001AF4", true),
            ("a[0-3b]c", "a2c", true),
            ("a[0-3b]c", "abc", true),
            ("a[0-3b]c", "a4c", false),
            ("a[!0-3]c", "a4c", true),
            ("a[!0-3]c", "a2c", false),
            ("a[]]c", "a]c", true),
            ("a[", "a[", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*", "", true),
            ("", "a", false),
            ("a*b*c", "axxbxxbxc", true),
            ("a*b*c", "axxbxxbx", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn any_pattern_ends(pattern in "[\\[\\]*?!a-c-]{0,30}", text in "[a-c]{0,200}") {
            let _ = matches(&pattern, &text);
        }

        #[test]
        fn text_matches_itself_with_stars(text in "[a-z0-9:]{0,30}", at in 0usize..30) {
            let at = at.min(text.len());
            prop_assert!(matches(&text, &text));
            let with_star = format!("{}*{}", &text[..at], &text[at..]);
            prop_assert!(matches(&with_star, &text));
        }
    }
}
