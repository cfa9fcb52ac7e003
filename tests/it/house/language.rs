//! Language: type names, doc comments, and texts that users read.

use super::{is_tests, literals, sources};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};
use syn::{Attribute, ItemMod, visit::Visit};

/// Phrases that STYLE.md bans. Those in upper case begin a sentence.
const BANNED: [&str; 20] = [
    "shall",
    "is told",
    "are told",
    "told to",
    "is said by",
    "stands in",
    "stand in",
    "stands for",
    "stand still",
    "stands still",
    "goes on as",
    "of its own",
    "as ever",
    "let in",
    "let it in",
    "lets in",
    "makes no sense",
    "nobody",
    "prove nothing",
    "whoever",
];
/// Participles, pronouns and adverbs that say neither what a function does nor what it returns. Use
/// a verb with its object, or a noun.
const NAMELESS: [&str; 48] = [
    "about",
    "admitted",
    "against",
    "ask",
    "asked",
    "attend",
    "authorised",
    "authoritative",
    "beyond",
    "bracketed",
    "certified",
    "committed",
    "complain",
    "converse",
    "dropped",
    "elsewhere",
    "everything",
    "exited",
    "follow",
    "forced",
    "given",
    "guarded",
    "held",
    "here",
    "implied",
    "in_time",
    "it",
    "left_behind",
    "linked",
    "named",
    "nobody",
    "ordered",
    "past",
    "provided",
    "rebooted",
    "released",
    "releasing",
    "reported",
    "signalled",
    "standing_by",
    "that",
    "them",
    "timed",
    "together",
    "told",
    "what",
    "whole",
    "within",
];
/// Words that begin a doc comment of at most three words that says nothing: `Its name.`,
/// `Which file.`
const QUESTIONS: [&str; 9] =
    ["How", "Its", "What", "When", "Where", "Which", "Who", "Whose", "Why"];

/// What a file declares and documents outside of its tests.
#[derive(Default)]
struct Declared {
    types: Vec<String>,
    docs: Vec<String>,
    functions: Vec<String>,
}

/// Visits of nodes with attributes; those of the first list declare a type.
macro_rules! visits {
    ($($visit:ident $node:ident),*; $($other:ident $plain:ident),*) => {
        $(fn $visit(&mut self, node: &'ast syn::$node) {
            self.types.push(node.ident.to_string());
            self.document(&node.attrs);
            syn::visit::$visit(self, node);
        })*
        $(fn $other(&mut self, node: &'ast syn::$plain) {
            self.document(&node.attrs);
            syn::visit::$other(self, node);
        })*
    };
}

impl<'ast> Visit<'ast> for Declared {
    visits! {
        visit_item_struct ItemStruct, visit_item_enum ItemEnum, visit_item_trait ItemTrait, visit_item_type ItemType;
        visit_item_const ItemConst, visit_item_static ItemStatic, visit_item_fn ItemFn, visit_field Field,
        visit_variant Variant, visit_impl_item_fn ImplItemFn, visit_impl_item_const ImplItemConst,
        visit_trait_item_fn TraitItemFn, visit_trait_item_type TraitItemType
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.functions.push(signature.ident.to_string());
        syn::visit::visit_signature(self, signature);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.ident != "tests" {
            self.document(&item.attrs);
            syn::visit::visit_item_mod(self, item);
        }
    }
}

impl Declared {
    fn of(text: &str) -> Self {
        let mut declared = Declared::default();
        declared.visit_file(&syn::parse_file(text).unwrap());
        declared
    }

    fn document(&mut self, attributes: &[Attribute]) {
        let lines = attributes
            .iter()
            .filter(|attribute| attribute.path().is_ident("doc"))
            .filter_map(|attribute| {
                let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
                let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value
                else {
                    return None;
                };
                Some(text.value())
            });
        let doc = lines.collect::<Vec<_>>().join(" ").trim().to_owned();
        if !doc.is_empty() {
            self.docs.push(doc);
        }
    }
}

fn released() -> impl Iterator<Item = (PathBuf, String)> {
    sources().into_iter().filter(|(path, _)| !is_tests(path))
}

/// The crate of a file, as its folder.
fn crate_of(path: &Path) -> String {
    let first: PathBuf = path.components().take(2).collect();
    let is_member = first.join("Cargo.toml").exists() || first.ends_with("bin");
    if is_member { first.display().to_string() } else { "src".to_owned() }
}

#[test]
fn type_name_that_occurs_twice_in_a_crate_is_refused() {
    let mut found: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (path, text) in released() {
        for name in Declared::of(&text).types {
            found.entry((crate_of(&path), name)).or_default().push(path.display().to_string());
        }
    }
    let twice = found.iter().filter(|(_, files)| files.len() > 1);
    let faults: Vec<String> = twice
        .map(|((folder, name), files)| {
            format!("{name} occurs twice in {folder}: {}", files.join(", "))
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn function_named_by_a_participle_or_pronoun_is_refused() {
    let sample =
        Declared::of("fn whole() {} fn read_body() {} struct S; impl S { fn ask(&self) {} }");
    assert_eq!(sample.functions, ["whole", "read_body", "ask"]);
    let mut faults = Vec::new();
    for (path, text) in released() {
        let names = Declared::of(&text)
            .functions
            .into_iter()
            .filter(|name| NAMELESS.contains(&name.as_str()));
        faults.extend(names.map(|name| format!("{}: fn {name}", path.display())));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// One word; a question of at most three; or an article and a noun. A code span names a source,
/// such as a file of sysfs. A help text of the command line has no full stop and may be one word.
fn says_nothing(doc: &str) -> bool {
    let words: Vec<&str> = doc.trim_end_matches('.').split_whitespace().collect();
    let is_question = words.len() <= 3 && QUESTIONS.contains(&words[0]);
    doc.ends_with('.')
        && !doc.contains('`')
        && (words.len() == 1 || is_question || words.len() == 2 && words[0] == "The")
}

#[test]
fn empty_doc_comment_is_refused() {
    let samples = [
        "Which.",
        "Its name.",
        "Where it lies.",
        "The image.",
        "Name",
        "`product_uuid`.",
        "Size in bytes.",
        "Why it was refused, in words.",
    ];
    assert_eq!(samples.map(says_nothing), [true, true, true, true, false, false, false, false]);
    let mut faults = Vec::new();
    for (path, text) in released() {
        let docs = Declared::of(&text).docs.into_iter().filter(|doc| says_nothing(doc));
        faults.extend(docs.map(|doc| format!("{}: {doc}", path.display())));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The banned phrase in a text, if there is one.
fn banned(text: &str) -> Option<&'static str> {
    let words = |text: &str| {
        text.split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let padded = format!(" {} ", words(&text.to_lowercase()));
    let question = text.starts_with("What ")
        || [". What ", "; What ", ": What "].iter().any(|start| text.contains(start));
    question
        .then_some("What")
        .or_else(|| BANNED.into_iter().find(|phrase| padded.contains(&format!(" {phrase} "))))
}

#[test]
fn text_with_a_banned_phrase_is_refused() {
    let samples = [
        "nodes shall boot",
        "ask. What is it",
        "a card of its own",
        "Whoever asks",
        "What's new",
        "marshall the shallow",
    ];
    assert_eq!(samples.map(|text| banned(text).is_some()), [true, true, true, true, false, false]);
    let mut faults = Vec::new();
    for (path, text) in released() {
        for (line, literal) in literals(&text) {
            let Some(phrase) = banned(&literal) else { continue };
            faults.push(format!("{}:{line}: `{phrase}` in {literal:?}", path.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
