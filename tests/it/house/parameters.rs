//! Parameters: clippy counts those of a function, and a tuple pattern hides some from it.

use super::{is_tests, sources};
use std::path::Path;
use syn::{
    ExprClosure, ImplItemFn, ItemFn, ItemMod, Pat, PatTuple, PatType, Signature, TraitItemFn,
    visit::Visit,
};

/// As in clippy.toml.
const MAX_PARAMETERS: usize = 6;

/// Functions and closures of one file with too many parameters, if each name in a tuple pattern
/// counts as one.
#[derive(Default)]
struct Wide(Vec<String>);

fn names(pattern: &Pat) -> usize {
    match pattern {
        Pat::Tuple(PatTuple { elems, .. }) => elems.iter().map(names).sum(),
        Pat::Type(PatType { pat, .. }) => names(pat),
        _ => 1,
    }
}

impl Wide {
    fn check(&mut self, signature: &Signature) {
        let count = |input: &syn::FnArg| match input {
            syn::FnArg::Receiver(_) => 1,
            syn::FnArg::Typed(input) => names(&input.pat),
        };
        let parameters: usize = signature.inputs.iter().map(count).sum();
        if parameters > MAX_PARAMETERS {
            self.0.push(format!("{} has {parameters}", signature.ident));
        }
    }
}

impl<'ast> Visit<'ast> for Wide {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.ident != "tests" {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.check(&item.sig);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.check(&item.sig);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.check(&item.sig);
        syn::visit::visit_trait_item_fn(self, item);
    }

    fn visit_expr_closure(&mut self, closure: &'ast ExprClosure) {
        let parameters: usize = closure.inputs.iter().map(names).sum();
        if parameters > MAX_PARAMETERS {
            self.0.push(format!("a closure has {parameters}"));
        }
        syn::visit::visit_expr_closure(self, closure);
    }
}

fn wide(path: &Path, text: &str) -> Vec<String> {
    let mut found = Wide::default();
    found.visit_file(&syn::parse_file(text).unwrap());
    found.0.into_iter().map(|function| format!("{}: {function}", path.display())).collect()
}

#[test]
fn tuple_parameter_hides_no_seventh_parameter() {
    let hidden = "fn f(a: u8, b: u8, c: u8, d: u8, (e, (g, h)): (u8, (u8, u8))) {}";
    assert_eq!(wide(Path::new("x.rs"), hidden), ["x.rs: f has 7"]);
    let local = "fn f() { let g = |a: u8, b, c, d, e, (f, g): (u8, u8)| a; }";
    assert_eq!(wide(Path::new("x.rs"), local), ["x.rs: a closure has 7"]);
    let released = sources().into_iter().filter(|(path, _)| !is_tests(path));
    let found: Vec<String> = released.flat_map(|(path, text)| wide(&path, &text)).collect();
    assert!(found.is_empty(), "pass a struct:\n{}", found.join("\n"));
}
