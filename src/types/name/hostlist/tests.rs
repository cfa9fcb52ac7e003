//! Tests of hostlists: syntax, bounds and wildcards.

use super::*;
use proptest::prelude::*;

fn names(text: &str) -> Vec<String> {
    let list: Hostlist = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    let name = |pattern: &NodePattern| match pattern {
        NodePattern::Word(name) | NodePattern::Name(name) | NodePattern::Glob(name) => name.clone(),
    };
    list.patterns().iter().map(name).collect()
}

#[test]
fn hostlist_expands_as_in_clustershell_and_slurm() {
    for (text, expected) in [
        ("gpu1", "gpu1"),
        ("gpu[001-003,050]", "gpu001 gpu002 gpu003 gpu050"),
        ("r[1-2]n[01-02]", "r1n01 r1n02 r2n01 r2n02"),
        ("a,b[1-3],c", "a b1 b2 b3 c"),
        (" a , b ", "a b"),
        ("n[5]", "n5"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("n[001-2]", "n001 n002"),
        ("n[0-2]-ib", "n0-ib n1-ib n2-ib"),
        ("n[1-9/4]", "n1 n5 n9"),
        ("[1-2]a", "1a 2a"),
        ("a,a,n[1,1]", "a n1"),
        ("r[1-2]*,?b", "r1* r2* ?b"),
    ] {
        assert_eq!(names(text).join(" "), expected, "{text}");
    }
}

#[test]
fn malformed_hostlist_is_refused_with_a_hint() {
    for (text, part) in [
        ("", "empty name"),
        ("a,,b", "empty name"),
        ("a,", "empty name"),
        ("gpu[", "`[` without `]`"),
        ("gpu]", "`]` without `[`"),
        ("gpu[]", "empty brackets"),
        ("gpu[1,[2]]", "nested brackets"),
        ("gpu[3-1]", "backwards"),
        ("gpu[a-c]", "no range of numbers"),
        ("gpu[1-]", "no range of numbers"),
        ("gpu[-1]", "no range of numbers"),
        ("gpu[1-2-3]", "no range of numbers"),
        ("gpu[1,]", "no range of numbers"),
        ("gpu[1-010]", "different width"),
        ("gpu[1-9/0]", "step 0"),
        ("gpu[1-1000000]", "names 1000000"),
        ("gpu[0-999999999999999999]x[0-999999999999999999]", "names too many nodes"),
        ("gpu[1-9999999999999999999]", "too long"),
        ("g\u{7}pu", "control character"),
        ("a[1][1][1][1][1][1][1][1][1]", "too many brackets"),
        ("n[1-300]*", "too many wildcards"),
        (&"a".repeat(MAX_NAME + 1), "too long for a node"),
        (&"a,".repeat(MAX_HOSTLIST / 2 + 1), "bytes is too long"),
    ] {
        let error = text.parse::<Hostlist>().expect_err(text);
        assert!(crate::Hint::message(&error).contains(part), "{text:.80}: {error}");
        assert!(crate::Hint::hint(&error).is_some(), "{text:.80}: {error}");
    }
}

#[test]
fn only_a_term_without_brackets_may_be_abbreviated() {
    let list: Hostlist = "a,n[1]".parse().expect("a hostlist");
    let expected = [NodePattern::Word("a".into()), NodePattern::Name("n1".into())];
    assert_eq!(list.patterns(), expected);
    assert_eq!(list.as_word(), None);
    assert_eq!("a".parse::<Hostlist>().expect("a hostlist").as_word(), Some("a"));
    let joined = Hostlist::join(&[list, "b".parse().expect("a hostlist")]).expect("within bounds");
    assert_eq!((joined.to_string(), joined.patterns().len()), ("a,n[1],b".to_owned(), 3));
}

#[test]
fn wildcard_matches_any_text_or_one_character() {
    for (pattern, name, is_match) in [
        ("gpu*", "gpu", true),
        ("gpu*", "gpu01", true),
        ("gpu*", "cpu01", false),
        ("*", "", true),
        ("g?u*1", "gpu011", true),
        ("g?u*1", "gpu012", false),
        ("gpu?", "gpu", false),
        ("*a*b", "xaayab", true),
        ("*a*b", "xaayabc", false),
        ("a", "b", false),
    ] {
        assert_eq!(matches_glob(pattern, name), is_match, "{pattern} {name}");
    }
}

/// A slow and obviously correct version of [`matches_glob`].
fn matches_slowly(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => {
            (0..=name.len()).any(|length| matches_slowly(rest, &name[length..]))
        }
        ([b'?', rest @ ..], [_, name @ ..]) => matches_slowly(rest, name),
        ([byte, rest @ ..], [first, name @ ..]) => byte == first && matches_slowly(rest, name),
        _ => false,
    }
}

proptest! {
    #[test]
    fn any_text_is_parsed_within_the_bounds_or_refused(text in "([a-c0-9,*?/ -]|\\[|\\]|.){0,60}") {
        if let Ok(list) = text.parse::<Hostlist>() {
            let names = names(&text);
            prop_assert!((1..=MAX_HOSTS).contains(&names.len()));
            prop_assert!(!names.iter().any(|name| name.is_empty() || name.contains(['[', ']', ','])));
            prop_assert_eq!(list.to_string(), text);
        }
    }

    #[test]
    fn range_expands_to_each_of_its_numbers(first in 0u64..5000, count in 1u64..200, width in 0usize..6) {
        let last = first + count - 1;
        let text = format!("n[{first:0width$}-{last:0width$}]");
        let digits = format!("{first:0width$}");
        let width = if digits.len() > 1 && digits.starts_with('0') { digits.len() } else { 0 };
        let expected: Vec<String> = (first..=last).map(|number| format!("n{number:0width$}")).collect();
        prop_assert_eq!(names(&text), expected);
    }

    #[test]
    fn wildcards_match_as_their_definition(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
        prop_assert_eq!(matches_glob(&pattern, &name), matches_slowly(pattern.as_bytes(), name.as_bytes()));
    }
}
