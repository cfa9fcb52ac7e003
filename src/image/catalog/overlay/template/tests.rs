//! Tests of templates on the stack of a thread that reads a site.

use super::super::{
    read_all,
    tests::{one, put},
};
use crate::overlay::sample::Sample;
use proptest::{collection::vec, prelude::*, sample::select};

/// Stack of the threads that read a site, in bytes.
const STACK: usize = 2 << 20;

#[test]
fn template_with_a_chain_of_operators_is_a_fault_on_a_small_stack() {
    let root = one("description = \"x\"\n", &[]);
    for (name, count) in [("most", 60), ("more", 8000)] {
        put(
            &root,
            &format!("etc/{name}.j2"),
            format!("{{{{ \"a\"{} }}}}", " ~ node.id".repeat(count)).as_bytes(),
        );
    }
    let path = root.path().to_owned();
    let reading =
        std::thread::Builder::new().stack_size(STACK).spawn(move || read_all(&path).faults);
    let faults = reading.expect("started").join().expect("no overflow");
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(
        faults[0]
            .to_string()
            .contains("etc/more.j2:1: has an expression with more than 128 operators"),
        "{faults:?}"
    );
}

#[test]
fn syntax_error_beyond_column_65534_is_a_fault() {
    let root = one("description = \"x\"\n", &[]);
    let long = "x".repeat(100_000);
    put(
        &root,
        "etc/right.j2",
        format!("{{{{ node.id }}}}{long}{{{{ node.id }}}}{long}").as_bytes(),
    );
    put(&root, "etc/wrong.j2", format!("{long}{{% if").as_bytes());
    let faults = read_all(root.path()).faults;
    assert!(faults.len() == 1 && faults[0].to_string().contains("etc/wrong.j2"), "{faults:?}");
}

#[test]
fn comparisons_of_long_lists_are_bounded() {
    let root = one("description = \"x\"\n", &[]);
    let list = "{% set l = range(4096)|map('string')|list %}";
    let compare = "{% for a in l %}{% for b in l %}{{ 'x' if 9999 in l }}{% endfor %}{% endfor %}";
    for (name, text) in [
        ("operator", compare),
        ("test", "{{ l|select('in', l)|select('in', l)|select('in', l)|list|length }}"),
    ] {
        put(&root, &format!("etc/{name}.j2"), format!("{list}{text}").as_bytes());
    }
    let sample = Sample::new(read_all(root.path()).overlays, vec!["one".parse().expect("a name")]);
    let faults = sample.render().expect_err("has faults").to_string();
    assert_eq!(faults.matches("takes too many steps to render").count(), 2, "{faults}");
}

proptest! {
    /// Whatever the bounds accept, minijinja parses and renders with an end, on the stack of a
    /// thread that reads a site.
    #[test]
    fn accepted_template_of_any_tokens_parses_and_renders_on_a_small_stack(
        pieces in vec((select(PIECES.to_vec()), prop_oneof![9 => 1_usize..4, 1 => 100_usize..400]), 1..24),
    ) {
        let text: String = pieces.iter().map(|(piece, count)| piece.repeat(*count)).collect();
        let root = one("description = \"x\"\n", &[]);
        put(&root, "etc/x.j2", text.as_bytes());
        let path = root.path().to_owned();
        let render = move || {
            let overlays = read_all(&path).overlays;
            let layers = overlays.named.keys().cloned().collect();
            drop(Sample::new(overlays, layers).render());
        };
        let rendering = std::thread::Builder::new().stack_size(STACK).spawn(render);
        rendering.expect("started").join().expect("no panic");
    }
}

/// Pieces of templates, balanced and not.
const PIECES: [&str; 40] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    " if ",
    " else ",
    " elif x ",
    " for a in ",
    " endfor ",
    " endif ",
    " set x ",
    " = ",
    " in ",
    " not ",
    " is ",
    " and ",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    ".",
    "|",
    "~",
    "-",
    "**",
    "==",
    "range(9)",
    "x",
    "node.id",
    "\"t\"",
    "7",
    "{% raw %}",
    "{% endraw %}",
    "{% macro m(x) %}{% endmacro %}",
];
