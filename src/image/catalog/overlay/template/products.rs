//! Which products a template may contain: a text or a list times a number has any size, and
//! minijinja has no bound for it. A tag with a product therefore contains nothing but numbers.

use super::tokens::Token;
use std::collections::BTreeSet;

/// Filters that return a number, or fail.
const TO_NUMBER: [&str; 2] = ["int", "float"];
/// Filters that return a number for a number.
const OF_NUMBER: [&str; 4] = ["abs", "float", "int", "round"];
const WORDS: [&str; 5] = ["and", "else", "if", "not", "or"];
const LOOP: [&str; 6] = ["depth", "index", "index0", "length", "revindex", "revindex0"];

/// Names of a template that are numbers.
#[derive(Default)]
pub(super) struct Numbers<'t> {
    /// Variables of the overlay that are integers.
    integers: BTreeSet<&'t str>,
    /// Names that the template sets to a number.
    set: BTreeSet<&'t str>,
    /// Names that must remain numbers, because an expression depends on it.
    relied_on: BTreeSet<&'t str>,
    other: BTreeSet<&'t str>,
}

impl<'t> Numbers<'t> {
    pub(super) fn new(integers: BTreeSet<&'t str>) -> Self {
        Numbers { integers, ..Numbers::default() }
    }

    /// Returns whether an expression can only be a number, and relies on its names.
    pub(super) fn relies(&mut self, tokens: &[Token<'t>]) -> bool {
        let names = self.names(tokens);
        let is_number = names.is_some();
        self.relied_on.extend(names.into_iter().flatten());
        is_number
    }

    /// Records an assignment, and returns whether no product relies on another type.
    pub(super) fn assign(&mut self, name: &'t str, is_number: bool) -> bool {
        if is_number && !self.other.contains(name) {
            self.set.insert(name);
            return true;
        }
        self.other.insert(name);
        self.set.remove(name);
        !self.relied_on.contains(name)
    }

    /// Returns the names of an expression if all its values are numbers.
    fn names(&self, tokens: &[Token<'t>]) -> Option<Vec<&'t str>> {
        let mut names = Vec::new();
        let mut rest = tokens;
        while let Some((token, after)) = rest.split_first() {
            rest = match (token, after.first()) {
                (Token::Symbol('|'), Some(Token::Word(filter))) if OF_NUMBER.contains(filter) => {
                    &after[1..]
                }
                // An empty tuple.
                (Token::Symbol('('), Some(Token::Symbol(')'))) => return None,
                (Token::Symbol('+' | '-' | '*' | '/' | '%' | '^' | '<' | '(' | ')'), _)
                | (Token::Number, _) => after,
                (Token::Word(word), _) if WORDS.contains(word) => after,
                (Token::Word(name), _) => {
                    let members = after
                        .chunks_exact(2)
                        .map_while(|pair| match pair {
                            [Token::Symbol('.'), Token::Word(member)] => Some(*member),
                            _ => None,
                        })
                        .collect::<Vec<_>>();
                    let after = &after[2 * members.len()..];
                    if !matches!(after, [Token::Symbol('|'), Token::Word(filter), ..] if TO_NUMBER.contains(filter))
                    {
                        self.is_number(name, &members).then(|| names.push(*name))?;
                    }
                    after
                }
                _ => return None,
            };
        }
        Some(names)
    }

    fn is_number(&self, name: &str, members: &[&str]) -> bool {
        match (name, members) {
            _ if self.other.contains(name) => false,
            ("vars", [variable]) => self.integers.contains(variable),
            ("loop", [member]) => LOOP.contains(member),
            (name, []) => self.set.contains(name),
            _ => false,
        }
    }
}
