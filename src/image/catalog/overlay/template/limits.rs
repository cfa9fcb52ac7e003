//! Bounds of a template that are checked before minijinja parses it: the parser and the compiler
//! recurse on long expressions, and a stack overflow ends meshd. The bounds on assignments keep
//! texts small that a template builds in memory, which fuel does not count.

use super::{
    comparisons::Comparisons,
    products::Numbers,
    tokens::{Tag, Token, tags},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    panic,
};

/// Maximum size of a template, in bytes.
const MAX_TEXT: usize = 256 * 1024;
/// Maximum number of operators of one expression, with those of the expressions around it.
const MAX_OPERATORS: usize = 128;
/// Maximum depth of brackets, and of blocks.
const MAX_DEPTH: usize = 32;
/// Maximum number of `elif` in a template: each nests the rest of its `if`.
const MAX_ELIF: usize = 128;
/// Maximum weight of one expression: how many variables it may join into one text, counting through
/// assignments.
const MAX_WEIGHT: usize = 64;
/// Weight of a captured block.
const CAPTURED: usize = MAX_WEIGHT / 2;
/// Weight of a parameter of a macro: its text may be joined from many others.
const PARAMETER: usize = MAX_WEIGHT / 8;
/// Instructions of one rendering: a loop over 16,384 members takes about 300,000.
const FUEL: u64 = 1_000_000;
/// Instructions of one rendering that may compare long lists or texts, which one instruction does:
/// 20,000 comparisons or slices.
const COMPARING_FUEL: u64 = 100_000;
/// Maximum size of plain text that captured blocks repeat in one rendering, in bytes.
const MAX_CAPTURED: u64 = 64 << 20;
/// Words that are operators.
const WORD_OPERATORS: [&str; 7] = ["and", "or", "not", "in", "is", "if", "else"];
const BLOCKS: [&str; 7] = ["for", "if", "with", "filter", "macro", "call", "autoescape"];

/// Why a template is refused before it is parsed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooComplex {
    pub(super) line: usize,
    pub(super) what: String,
    pub(super) hint: &'static str,
}

/// Checks a template and returns the fuel of one rendering. `integers` are the variables of the
/// overlay that are numbers.
pub(super) fn check<'t>(text: &'t str, integers: BTreeSet<&'t str>) -> Result<u64, TooComplex> {
    if text.len() > MAX_TEXT {
        let what = format!("is a template of {} bytes, more than {MAX_TEXT}", text.len());
        return Err(TooComplex { line: 0, what, hint: "move the constant part into a plain file" });
    }
    let tags = panic::catch_unwind(|| tags(text)).map_err(|panicked| {
        // minijinja counts columns in 16 bits: in a debug build, its tokenizer panics at a syntax
        // error beyond them.
        if text.lines().all(|line| line.len() <= usize::from(u16::MAX)) {
            panic::resume_unwind(panicked);
        }
        TooComplex {
            line: 0,
            what: "has a syntax error beyond column 65,534".to_owned(),
            hint: "break the line to see the error",
        }
    })?;
    let mut scan = Scan { numbers: Numbers::new(integers), ..Scan::default() };
    for tag in tags {
        scan.tag(&tag).map_err(|(what, hint)| TooComplex { line: tag.line, what, hint })?;
    }
    let repeats = MAX_CAPTURED / text.len().max(1) as u64;
    let fuel = if scan.comparisons.are_long() { COMPARING_FUEL } else { FUEL };
    Ok(if scan.captures { fuel.min(repeats.max(1)) } else { fuel })
}

type Refusal = (String, &'static str);

/// State of the scan of one template.
#[derive(Default)]
struct Scan<'t> {
    /// Weight of each name that the template assigns.
    weights: BTreeMap<&'t str, usize>,
    numbers: Numbers<'t>,
    macros: Vec<&'t str>,
    blocks: usize,
    elif: usize,
    in_macro: bool,
    /// Whether a block is rendered into a variable.
    captures: bool,
    comparisons: Comparisons,
}

impl<'t> Scan<'t> {
    fn tag(&mut self, tag: &Tag<'t>) -> Result<(), Refusal> {
        let (first, rest) = match tag.tokens.split_first() {
            Some((Token::Word(first), rest)) if tag.is_statement => (*first, rest),
            _ => ("", &tag.tokens[..]),
        };
        operators(rest)?;
        self.comparisons.add(first, rest);
        self.calls(rest)?;
        let weight = self.weight(rest)?;
        let is_number = self.products(first, rest)?;
        match first {
            "set" if rest.contains(&Token::Symbol('=')) => self.assign(rest, weight, is_number)?,
            "set" => {
                self.captures = true;
                self.assign(rest, CAPTURED, false)?;
                self.open()?;
            }
            "endset" => self.blocks = self.blocks.saturating_sub(1),
            "include" | "import" | "from" | "extends" | "block" => {
                return Err((
                    format!("uses `{first}`"),
                    "write the text here: a template cannot read another one",
                ));
            }
            "elif" => {
                self.elif += 1;
                if self.elif > MAX_ELIF {
                    return Err((
                        format!("has more than {MAX_ELIF} elif"),
                        "look the value up in a map: {\"a\": 1}[x]",
                    ));
                }
            }
            end if end.strip_prefix("end").is_some_and(|block| BLOCKS.contains(&block)) => {
                self.blocks = self.blocks.saturating_sub(1);
                self.in_macro &= end != "endmacro";
            }
            block if BLOCKS.contains(&block) => {
                self.open()?;
                self.block(block, rest, weight)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self) -> Result<(), Refusal> {
        self.blocks += 1;
        match self.blocks > MAX_DEPTH {
            true => Err((format!("nests blocks more than {MAX_DEPTH} deep"), "split the template")),
            false => Ok(()),
        }
    }

    fn block(&mut self, block: &str, rest: &[Token<'t>], weight: usize) -> Result<(), Refusal> {
        self.captures |= ["macro", "filter", "call"].contains(&block);
        match block {
            "for" | "with" => self.assign(rest, weight, false)?,
            "macro" => {
                self.in_macro = true;
                self.name_all(rest, weight.max(PARAMETER), false)?;
                if let Some(Token::Word(name)) = rest.first() {
                    self.macros.push(name);
                    self.weights.insert(name, CAPTURED);
                }
            }
            "call" if rest.first() == Some(&Token::Symbol('(')) => {
                let end = rest
                    .iter()
                    .position(|token| *token == Token::Symbol(')'))
                    .unwrap_or(rest.len());
                self.name_all(&rest[..end], weight.max(PARAMETER), false)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Refuses a product of anything but numbers; returns whether the tag sets a name to a number.
    fn products(&mut self, statement: &str, tokens: &[Token<'t>]) -> Result<bool, Refusal> {
        let (sets, expression) = match tokens {
            [Token::Word(_), Token::Symbol('='), expression @ ..] if statement == "set" => {
                (true, expression)
            }
            _ => (false, tokens),
        };
        let multiplies = expression.contains(&Token::Symbol('*'));
        let is_number = (sets || multiplies) && self.numbers.relies(expression);
        if multiplies && !is_number {
            let hint = "multiply integers only, in a tag of their own: {% set mb = vars.gb * 1024 %}{{ mb }}, or x | int * 2";
            return Err(("multiplies what may be a text or a list".into(), hint));
        }
        Ok(sets && is_number)
    }

    /// Refuses recursion and state that loops carry on: both let a text grow without bound.
    fn calls(&self, tokens: &[Token<'t>]) -> Result<(), Refusal> {
        let named = |name: &str| tokens.contains(&Token::Word(name));
        let is_called = |name: &&&str| {
            tokens.windows(2).any(|pair| pair == [Token::Word(name), Token::Symbol('(')])
        };
        if named("recursive") || named("namespace") {
            return Err((
                "uses `recursive` or `namespace`".into(),
                "write the result out instead of collecting it",
            ));
        }
        match self.macros.iter().find(is_called).filter(|_| self.in_macro) {
            Some(name) => Err((
                format!("calls the macro `{name}` from a macro"),
                "write the text out where it is used",
            )),
            None => Ok(()),
        }
    }

    /// Returns the weight of an expression.
    fn weight(&self, tokens: &[Token<'t>]) -> Result<usize, Refusal> {
        let count = |symbols: &[char]| {
            tokens
                .iter()
                .filter(|token| matches!(token, Token::Symbol(symbol) if symbols.contains(symbol)))
                .count()
        };
        let named = tokens.iter().map(|token| match token {
            Token::Word("range") => 1,
            Token::Word(word) => self.weights.get(word).copied().unwrap_or_default(),
            _ => 0,
        });
        let named = named.sum::<usize>();
        // Brackets around a name may nest a list deeper with each assignment.
        let nests = if named > 0 { count(&['[', '{', '(']) } else { 0 };
        let weight = named + nests + count(&['~', '+', '|']);
        if weight > MAX_WEIGHT {
            let hint = "join fewer values, or write them out one after the other: {{ a }}{{ b }}";
            return Err(("builds one value from too many others".into(), hint));
        }
        Ok(weight.max(1))
    }

    /// Records the names of an assignment: all words for a loop, else those before `=`.
    fn assign(
        &mut self,
        tokens: &[Token<'t>],
        weight: usize,
        is_number: bool,
    ) -> Result<(), Refusal> {
        let end = tokens
            .iter()
            .rposition(|token| *token == Token::Symbol('='))
            .or_else(|| tokens.iter().position(|token| *token == Token::Word("in")));
        let names = &tokens[..end.unwrap_or(tokens.len())];
        self.name_all(names, weight, is_number)
    }

    fn name_all(
        &mut self,
        tokens: &[Token<'t>],
        weight: usize,
        is_number: bool,
    ) -> Result<(), Refusal> {
        for token in tokens {
            let Token::Word(name) = token else { continue };
            let known = self.weights.entry(name).or_default();
            *known = (*known).max(weight);
            if !self.numbers.assign(name, is_number) {
                return Err((
                    format!("gives `{name}` another type than number"),
                    "use another name",
                ));
            }
        }
        Ok(())
    }
}

/// Counts the operators that nest, and the depth of brackets.
fn operators(tokens: &[Token<'_>]) -> Result<(), Refusal> {
    let mut levels = vec![0_usize];
    let mut total = 0_usize;
    for token in tokens {
        match token {
            Token::Symbol('(' | '[' | '{') => levels.push(0),
            Token::Symbol(')' | ']' | '}') if levels.len() > 1 => {
                total -= levels.pop().unwrap_or_default()
            }
            Token::Symbol(',') => {
                total -= levels.last_mut().map(std::mem::take).unwrap_or_default()
            }
            Token::Symbol(':') => {}
            Token::Word(word) if !WORD_OPERATORS.contains(word) => {}
            Token::Symbol(_) | Token::Word(_) => {
                *levels.last_mut().expect("one level is never closed") += 1;
                total += 1;
            }
            Token::Number | Token::Text => {}
        }
        if levels.len() > MAX_DEPTH {
            return Err((
                format!("nests brackets more than {MAX_DEPTH} deep"),
                "split the expression with {% set %}",
            ));
        }
        if total > MAX_OPERATORS {
            let what = format!("has an expression with more than {MAX_OPERATORS} operators");
            return Err((what, "write several expressions: {{ a }}{{ b }}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> Option<String> {
        check(text, BTreeSet::from(["gb"])).err().map(|found| found.what)
    }

    #[test]
    fn template_that_recurses_or_grows_is_refused_before_parsing() {
        let chain = |operator: &str, count: usize| {
            format!("{{{{ node.id{} }}}}", format!(" {operator} node.id").repeat(count))
        };
        let nested =
            |count: usize| format!("{{{{ {}1{} }}}}", "(".repeat(count), ")".repeat(count));
        let blocks = |count: usize| "{% if true %}".repeat(count) + &"{% endif %}".repeat(count);
        let elif =
            |count: usize| format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(count));
        let doubling = "{% set x = node.id %}".to_owned() + &"{% set x = x ~ x %}".repeat(8);
        let refused = [
            (chain("~", 8000), "operators"),
            (chain("and", 8000), "operators"),
            (format!("{{{{ node{} }}}}", ".id".repeat(8000)), "operators"),
            (format!("{{{{ {}true }}}}", "not ".repeat(8000)), "operators"),
            (format!("{{{{ \"}}}}\"{} }}}}", " ~ node.id".repeat(8000)), "operators"),
            (nested(8000), "brackets"),
            (blocks(8000), "blocks"),
            (elif(8000), "elif"),
            (doubling, "too many others"),
            (format!("{{{{ {{\"a\":{{}}}} {} }}}}", "~1".repeat(8000)), "operators"),
            (
                format!(
                    "{{% raw %}}endraw{{#{{% endraw %}}{{{{ 1{} }}}}{{# #}}",
                    "~1".repeat(8000)
                ),
                "operators",
            ),
            (
                format!(
                    "{{#}} {{% raw %}} #}}{{{{ 1{} }}}}{{# {{% endraw %}} #}}",
                    "~1".repeat(8000)
                ),
                "operators",
            ),
            (format!("{{{{ 1{} \"", "~1".repeat(8000)), "operators"),
            (format!("{{% set a = [1] %}}{}", "{% set a = [a] %}".repeat(80)), "too many others"),
            ("{% set l = [1] * 9999999999 %}{{ l|sort }}".to_owned(), "multiplies"),
            ("{% set a = [\"x\" * 100000000, 1] %}".to_owned(), "multiplies"),
            ("{% macro m(a=[1] * 50000000) %}{{ a|sort }}{% endmacro %}".to_owned(), "multiplies"),
            ("{% if 5 in [1] * 99999999999 %}{% endif %}".to_owned(), "multiplies"),
            ("{{ (range(100) * 9999999)[-1] }}".to_owned(), "multiplies"),
            ("{{ [1] * 99999999999 == [1] * 99999999999 }}".to_owned(), "multiplies"),
            ("{{ vars.names * 9999 }}".to_owned(), "multiplies"),
            ("{{ (() * 9) | length }}".to_owned(), "multiplies"),
            ("{{ 9 * 5|string }}".to_owned(), "multiplies"),
            ("{% set n = 5 %}{% macro m(n) %}{{ n * 9 }}{% endmacro %}".to_owned(), "multiplies"),
            (
                "{% macro m() %}{{ vars.gb * 9 }}{% endmacro %}{% set vars = {} %}".to_owned(),
                "another type",
            ),
            ("{% set n = namespace(x=1) %}".to_owned(), "namespace"),
            ("{% macro m(x) %}{{ m(x) }}{% endmacro %}".to_owned(), "macro"),
            ("{% include \"rootfs/etc/x.j2\" %}".to_owned(), "include"),
            ("x".repeat(MAX_TEXT + 1), "bytes"),
        ];
        for (text, why) in refused {
            let shown: String = text.chars().take(60).collect();
            assert!(
                refusal(&text).is_some_and(|what| what.contains(why)),
                "{shown}: {:?}",
                refusal(&text)
            );
        }
        let accepted = [
            chain("~", 40),
            nested(30),
            blocks(30),
            format!("{{{{ [{}] }}}}", "node.id, ".repeat(500)),
            "{# {{ a ~ b #}{% raw %}{{ ( ( {% endraw %}".to_owned(),
            "{% set mb = vars.gb * 1024 %}{{ mb }} {{ vars.gb * 1024 * 1024 }}".to_owned(),
            "{% set n = mb.x | int * 2 + (vars.gb - 1) %}{% for m in a %}{{ loop.index * n }}{% endfor %}".to_owned(),
            "{% for m in groups.x.members %}{{ m.id }}{{ \", \" if not loop.last }}{% endfor %}".to_owned(),
        ];
        for text in accepted {
            assert_eq!(refusal(&text), None, "{text}");
        }
    }

    #[test]
    fn captured_block_of_a_large_template_has_less_fuel() {
        let text = |body: &str| format!("{{% set x %}}{body}{{% endset %}}");
        assert_eq!(check(&"y".repeat(1000), BTreeSet::new()), Ok(FUEL));
        assert!(check(&text(&"y".repeat(100_000)), BTreeSet::new()).is_ok_and(|fuel| fuel < 1000));
    }
}
