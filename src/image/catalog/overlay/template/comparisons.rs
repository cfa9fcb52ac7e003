//! Which templates may compare long lists or texts: one instruction compares all their elements,
//! and fuel counts it as one.

use super::tokens::Token;

/// Members of values that are short: a comparison with one is one step.
const SHORT_MEMBERS: [&str; 8] =
    ["address", "grouper", "hostname", "id", "index", "index0", "length", "name"];

/// The comparisons and slices of a template.
#[derive(Default)]
pub(super) struct Comparisons {
    /// One may take a step for each element of a list.
    of_lists: bool,
    /// One names a member that is short, unless the template makes a map with such a member.
    of_members: bool,
    makes_maps: bool,
}

impl Comparisons {
    /// Returns whether a comparison may be of long lists or texts.
    pub(super) fn are_long(&self) -> bool {
        self.of_lists || (self.of_members && self.makes_maps)
    }

    /// Adds a tag: its first word if it is a statement, and its other tokens.
    pub(super) fn add(&mut self, statement: &str, tokens: &[Token<'_>]) {
        let loops = usize::from(statement == "for");
        self.of_lists |= tokens.iter().filter(|token| **token == Token::Word("in")).count() > loops;
        self.makes_maps |=
            tokens.iter().any(|token| matches!(token, Token::Symbol('{') | Token::Word("dict")));
        let mut brackets = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                Token::Symbol(open @ ('(' | '[' | '{')) => brackets.push(*open),
                Token::Symbol(')' | ']' | '}') => drop(brackets.pop()),
                Token::Symbol(':') => self.of_lists |= brackets.last() == Some(&'['),
                Token::Symbol('<') => self.add_operands(&tokens[..at], &tokens[at + 1..]),
                _ => {}
            }
        }
    }

    fn add_operands(&mut self, before: &[Token<'_>], after: &[Token<'_>]) {
        let is_literal =
            |token: Option<&Token<'_>>| matches!(token, Some(Token::Number | Token::Text));
        if is_literal(before.last()) || is_literal(after.first()) {
            return;
        }
        let is_short = ends_short(before) || begins_short(after);
        *(if is_short { &mut self.of_members } else { &mut self.of_lists }) = true;
    }
}

/// Returns whether the operand before a comparison ends with a short member.
fn ends_short(tokens: &[Token<'_>]) -> bool {
    matches!(tokens, [.., Token::Symbol('.'), Token::Word(name)] if SHORT_MEMBERS.contains(name))
}

/// Returns whether the operand after a comparison is a path to a short member.
fn begins_short(tokens: &[Token<'_>]) -> bool {
    let members =
        tokens.get(1..).unwrap_or_default().chunks_exact(2).map_while(|pair| match pair {
            [Token::Symbol('.'), Token::Word(name)] => Some(*name),
            _ => None,
        });
    members.last().is_some_and(|name| SHORT_MEMBERS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::{super::tokens::tags, *};

    #[test]
    fn comparison_that_may_be_of_lists_is_found() {
        let are_long = |body: &str| {
            let text = format!("{{% for m in groups.a.members %}}{body}{{% endfor %}}");
            let mut comparisons = Comparisons::default();
            for tag in tags(&text) {
                match tag.tokens.split_first() {
                    Some((Token::Word(first), rest)) if tag.is_statement => {
                        comparisons.add(first, rest)
                    }
                    _ => comparisons.add("", &tag.tokens),
                }
            }
            comparisons.are_long()
        };
        for body in [
            "{% if m in vars.names %}x{% endif %}",
            "{{ m is in(vars.names) }}",
            "{{ vars.names == site.ssh_keys }}",
            "{{ vars.names[1:] | length }}",
            "{% if \"a\" in m.id %}x{% endif %}",
            "{% for n in m if n in m %}{% endfor %}",
            "{% set x = {\"id\": vars.names} %}{{ x.id == m.id }}",
            "{% if vars.chosen == groups.a.members[0].name %}{% endif %}",
        ] {
            assert!(are_long(body), "{body}");
        }
        for body in [
            "{% if m.id == node.id %}x{% endif %}",
            "{% if m.id != vars.chosen and loop.index < 9 %}x{% endif %}",
            "{% if vars.kind == \"x\" %}{% endif %}{{ {\"a\": 1} | json }}",
        ] {
            assert!(!are_long(body), "{body}");
        }
    }
}
