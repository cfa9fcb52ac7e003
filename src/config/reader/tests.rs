//! Tests of the strict TOML reader.

use super::*;
use meshd_types::MacAddr;
use proptest::prelude::*;
use std::time::Duration;

const TEXT: &str = "\
name = \"one\"
count = 70
wait = \"5x\"
flag = \"yes\"
[net]
mac = \"aa:bb\"
adress = \"10.0.0.1\"
list = [\"a\",
        2]
[who.base]
x = 1
[[part]]
y = 1
[[part]]
z = 1
";

fn walk(root: &Table<'_>) -> Option<String> {
    let name = root.string("name");
    let _ = (root.integer("count", 0..=64), root.bool("flag"));
    let _ = root.duration("wait", Duration::ZERO..=Duration::from_secs(60));
    root.required("missing", root.word("missing"), "write one");
    let net = root.table("net")?;
    let _ = (net.parsed::<MacAddr>("mac"), net.ipv4("address"), net.strings("list"));
    for entry in root.table("who")?.entries() {
        assert_eq!((entry.name.as_str(), entry.name.line), ("base", 10));
    }
    for part in root.tables("part") {
        part.integer("y", 0..=9);
    }
    name.map(|name| name.value)
}

#[test]
fn reader_reports_all_faults_with_line_key_and_hint() {
    let document = parse(TEXT, Path::new("x.toml")).expect("TOML");
    let value = walk(&document.root());
    let faults = document.finish(value).expect_err("it has faults");
    let expected = "\
x.toml: missing: is required
  hint: write one
x.toml:2: count: 70 is out of range
  hint: write a number from 0 to 64
x.toml:3: wait: `5x` is not a duration
  hint: write a whole number and a unit: \"30s\", \"15m\", \"1h\", \"7d\"
x.toml:4: flag: is a string
  hint: write true or false
x.toml:6: net.mac: `aa:bb` is not a MAC address
  hint: write it as aa:bb:cc:dd:ee:ff
x.toml:7: net.adress: unknown key
  hint: did you mean `address`?
x.toml:9: net.list[1]: is an integer
  hint: write a text in quotes
x.toml:11: who.base.x: unknown key
  hint: remove it, or define it first
x.toml:15: part[1].z: unknown key
  hint: did you mean `y`?";
    assert_eq!(faults.to_string(), expected);
}

#[test]
fn value_with_a_semicolon_is_quoted_whole_beside_the_hint() {
    let document = parse("mac = \"aa; bb; cc\"\n", Path::new("x.toml")).expect("TOML");
    let mac = document.root().parsed::<MacAddr>("mac");
    let faults = document.finish(mac.map(|mac| mac.value)).expect_err("no MAC address");
    let [fault] = faults.0.as_slice() else { panic!("{faults}") };
    assert_eq!(fault.message, "`aa; bb; cc` is not a MAC address");
    assert_eq!(fault.hint, "write it as aa:bb:cc:dd:ee:ff");
}

#[test]
fn syntax_error_names_its_line() {
    let faults =
        parse("[net]\nname = \"a\"\nmore = = 2\n", Path::new("x.toml")).expect_err("no TOML");
    assert_eq!(faults.0[0].line, 3, "{faults}");
    let twice = parse("a = 1\nb = 2\na = 3\n", Path::new("x.toml")).expect_err("a key twice");
    assert_eq!(twice.0[0].line, 3, "{twice}");
    assert!(twice.0[0].hint.contains("keep one of the two"), "{twice}");
}

#[test]
fn word_without_quotes_is_named() {
    let refused = |text: &str| {
        let faults = parse(text, Path::new("x.toml")).expect_err("no TOML");
        (faults.0[0].line, faults.0[0].message.clone(), faults.0[0].hint.to_string())
    };
    for word in ["null", "None", "ib0", "node1", "yes", "True", "truely"] {
        for (text, at) in [
            (format!("a = 1\nb = {word}\n"), 2),
            (format!("a = 1\nb = [1, {word}]\n"), 2),
            (format!("a = 1\nb = [{word}]\n"), 2),
            (format!("a = 1\nb = [\n  {word},\n]\n"), 3),
        ] {
            let (line, message, hint) = refused(&text);
            assert_eq!((line, message), (at, format!("`{word}` is not a value")), "{text}");
            assert!(
                hint.starts_with(if ["null", "None"].contains(&word) { "remove" } else { "write" }),
                "{hint}"
            );
        }
    }
    assert_eq!(refused("a = 1\n[b\n").0, 2);
}

#[test]
fn odd_files_are_read_or_refused_with_their_line() {
    let root =
        |text: &str| parse(text, Path::new("x.toml")).map(|document| document.root().keys().len());
    assert_eq!(root("\u{feff}a = 1\r\nb = 2\r\n"), Ok(2), "byte order mark and CRLF");
    let deep = |open: &str, close: &str| {
        format!("a = 1\nb = {}1{}\n", open.repeat(100_000), close.repeat(100_000))
    };
    for (text, line) in [
        ("a = 1\nb = \"x\0y\"\n".to_owned(), 2),
        ("a = 1\n\0\n".to_owned(), 2),
        ("a = 1\rb = 2\n".to_owned(), 1),
        ("a = 1\na = 2\n".to_owned(), 2),
        ("[a]\n[a]\n".to_owned(), 2),
        ("a = 1\nb = 99999999999999999999\n".to_owned(), 2),
        (deep("[", "]"), 2),
        (deep("{x=", "}"), 2),
        (format!("a = 1\n{}x = 1\n", "b.".repeat(100_000)), 2),
        (format!("a = 1\n[{}x]\n", "b.".repeat(100_000)), 2),
    ] {
        let faults = root(&text).expect_err("refused");
        let shown = faults.to_string();
        assert_eq!(faults.0[0].line, line, "{}", shown.chars().take(300).collect::<String>());
        assert!(shown.len() < 2_000, "{}", shown.chars().take(300).collect::<String>());
    }
}

#[test]
fn path_for_a_shell_is_a_fault() {
    let text = "a = \"~/x\"\nb = \"$HOME/x\"\nc = \"x~/$y\"\n";
    let document = parse(text, Path::new("x.toml")).expect("TOML");
    let is_path = |key| document.root().path(key).is_some();
    assert_eq!(["a", "b", "c"].map(is_path), [false, false, true]);
    let faults = document.finish(Some(())).expect_err("two faults").to_string();
    assert!(
        faults.contains("x.toml:1: a: `~/x`: no shell expands") && faults.contains("x.toml:2: b:"),
        "{faults}"
    );
}

#[test]
fn paths_are_relative_to_the_folder_of_the_file() {
    let document =
        parse("a = \"b/c\"\nd = \"/e\"\n", Path::new("/etc/meshd/site.toml")).expect("TOML");
    let root = document.root();
    assert_eq!(root.path("a").map(|path| path.value), Some("/etc/meshd/b/c".into()));
    assert_eq!(root.path("d").map(|path| path.value), Some("/e".into()));
}

#[test]
fn missing_file_is_refused_with_hint() {
    let faults = read_text(Path::new("/nonexistent/site.toml"), "name it with --site FILE")
        .expect_err("not there");
    assert_eq!(
        faults.to_string(),
        "/nonexistent/site.toml: there is no such file\n  hint: name it with --site FILE"
    );
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_panic(text in "(\\[{1,2}(net|who|part)(\\.a)?\\]{1,2}\n|(name|mac|list|y) ?= ?(1|\"x\"|\\[1\\]|\\{y=1\\}|true)\n|\\PC{0,8}\n){0,8}") {
        if let Ok(document) = parse(&text, Path::new("x.toml")) {
            let value = {
                let root = document.root();
                let _ = (root.strings("list"), root.list::<MacAddr>("name"), root.path("mac"));
                let _ = (root.tables("part"), root.table("net"), root.choice("y", &[("x", 1)]));
                root.table("who").map(|who| who.entries().len())
            };
            let _ = document.finish(value);
        }
    }
}

#[test]
fn faults_of_one_file_are_bounded() {
    let text: String = (0..MAX_FAULTS + 50).map(|number| format!("[a{number}.b]\n")).collect();
    let document = parse(&text, Path::new("overlay.toml")).unwrap();
    drop(document.root());
    let Faults(faults) = document.finish(Some(())).unwrap_err();
    assert_eq!(faults.len(), MAX_FAULTS);
}
