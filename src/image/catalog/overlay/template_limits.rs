//! Bounds of a template that are checked before minijinja parses it: the parser and the compiler recurse on long expressions, and a stack
//! overflow ends meshd. The bounds on assignments keep texts small that a template builds in memory, which fuel does not count.

use std::collections::BTreeMap;

/// Maximum size of a template, in bytes.
const MAX_TEXT: usize = 256 * 1024;
/// Maximum number of operators of one expression, with those of the expressions around it.
const MAX_OPERATORS: usize = 128;
/// Maximum depth of brackets, and of blocks.
const MAX_DEPTH: usize = 32;
/// Maximum number of `elif` in a template: each nests the rest of its `if`.
const MAX_ELIF: usize = 128;
/// Maximum weight of one expression: how many variables it may join into one text, counting through assignments.
const MAX_WEIGHT: usize = 64;
/// Weight of a product, which may be a list of any length: no filter and no text may take it on.
const PRODUCT: usize = MAX_WEIGHT;
/// Weight of a captured block.
const CAPTURED: usize = MAX_WEIGHT / 2;
/// Instructions of one rendering: a loop over 16,384 members takes about 300,000.
const FUEL: u64 = 1_000_000;
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

/// Checks a template and returns the fuel of one rendering.
pub(super) fn check(text: &str) -> Result<u64, TooComplex> {
    if text.len() > MAX_TEXT {
        let what = format!("is a template of {} bytes, more than {MAX_TEXT}", text.len());
        return Err(TooComplex { line: 0, what, hint: "move the constant part into a plain file" });
    }
    let (mut scan, mut rest) = (Scan::default(), 0);
    while let Some(tag) = next_tag(text, rest) {
        let line = text[..tag.at].matches('\n').count() + 1;
        scan.tag(&tag).map_err(|(what, hint)| TooComplex { line, what, hint })?;
        rest = tag.end;
        if tag.is_statement && first_word(tag.body) == "raw" {
            rest = text[rest..].find("endraw").map_or(text.len(), |at| rest + at);
        }
    }
    let repeats = MAX_CAPTURED / text.len().max(1) as u64;
    Ok(if scan.captures { FUEL.min(repeats.max(1)) } else { FUEL })
}

struct Tag<'t> {
    /// Offset of the tag.
    at: usize,
    end: usize,
    is_statement: bool,
    body: &'t str,
}

/// Finds the next `{{ }}` or `{% %}`, and skips comments.
fn next_tag(text: &str, mut from: usize) -> Option<Tag<'_>> {
    loop {
        let at = from + text[from..].find('{')?;
        let kind = text[at + 1..].chars().next()?;
        let close = match kind {
            '#' => {
                from = text[at..].find("#}").map_or(text.len(), |end| at + end + 2);
                continue;
            }
            '{' => "}}",
            '%' => "%}",
            _ => {
                from = at + 1;
                continue;
            }
        };
        let length = tag_length(&text[at + 2..], close);
        let body = &text[at + 2..at + 2 + length];
        let end = (at + 2 + length + 2).min(text.len());
        return Some(Tag { at, end, is_statement: kind == '%', body });
    }
}

/// Returns the offset of the end of a tag; texts in quotes may contain it.
fn tag_length(text: &str, close: &str) -> usize {
    let mut at = 0;
    while let Some(found) = text[at..].find(|c| c == '"' || c == '\'' || close.starts_with(c)) {
        at += found;
        let c = text[at..].chars().next().unwrap_or_default();
        if text[at..].starts_with(close) {
            return at;
        }
        let is_quote = c == '"' || c == '\'';
        at += if is_quote { quote_end(&text[at + 1..], c).map_or(text.len() - at, |end| end + 2) } else { 1 };
    }
    text.len()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    Word(&'t str),
    Number,
    Text,
    Symbol(char),
}

/// Splits a tag into words, numbers, texts and single symbols.
fn tokens(body: &str) -> Vec<Token<'_>> {
    let (mut found, mut rest) = (Vec::new(), body.trim_matches(['-', '+']));
    while let Some(c) = rest.chars().next() {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let length = match c {
            '"' | '\'' => {
                found.push(Token::Text);
                quote_end(&rest[1..], c).map_or(rest.len(), |at| at + 2)
            }
            c if word(c) => {
                let length = rest.find(|c| !word(c)).unwrap_or(rest.len());
                let is_number = c.is_numeric();
                found.push(if is_number { Token::Number } else { Token::Word(&rest[..length]) });
                length
            }
            c if c.is_whitespace() => c.len_utf8(),
            c => {
                found.push(Token::Symbol(c));
                c.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    found
}

/// Returns the offset of the closing quote.
fn quote_end(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == quote && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends.then_some(at)
    })
}

fn first_word(body: &str) -> &str {
    tokens(body)
        .into_iter()
        .find_map(|token| if let Token::Word(word) = token { Some(word) } else { None })
        .unwrap_or("")
}

type Refusal = (String, &'static str);

/// State of the scan of one template.
#[derive(Default)]
struct Scan<'t> {
    /// Weight of each name that the template assigns.
    weights: BTreeMap<&'t str, usize>,
    macros: Vec<&'t str>,
    blocks: usize,
    elif: usize,
    in_macro: bool,
    /// Whether a block is rendered into a variable.
    captures: bool,
}

impl<'t> Scan<'t> {
    fn tag(&mut self, tag: &Tag<'t>) -> Result<(), Refusal> {
        let tokens = tokens(tag.body);
        let (first, rest) = match tokens.split_first() {
            Some((Token::Word(first), rest)) if tag.is_statement => (*first, rest),
            _ => ("", &tokens[..]),
        };
        operators(rest)?;
        self.calls(rest)?;
        let weight = self.weight(first, rest)?;
        match first {
            "set" if rest.contains(&Token::Symbol('=')) => self.assign(rest, weight),
            "set" => {
                self.captures = true;
                self.assign(rest, CAPTURED);
                self.open()?;
            }
            "endset" => self.blocks = self.blocks.saturating_sub(1),
            "include" | "import" | "from" | "extends" | "block" => {
                return Err((format!("uses `{first}`"), "write the text here: a template cannot read another one"));
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
                self.block(block, rest, weight);
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

    fn block(&mut self, block: &str, rest: &[Token<'t>], weight: usize) {
        match block {
            "for" | "with" => self.assign(rest, weight),
            "macro" => {
                self.in_macro = true;
                self.captures = true;
                if let Some(Token::Word(name)) = rest.first() {
                    self.macros.push(name);
                    self.weights.insert(name, CAPTURED);
                }
            }
            "filter" | "call" => self.captures = true,
            _ => {}
        }
    }

    /// Refuses recursion and state that loops carry on: both let a text grow without bound.
    fn calls(&self, tokens: &[Token<'t>]) -> Result<(), Refusal> {
        let named = |name: &str| tokens.contains(&Token::Word(name));
        let is_called = |name: &&&str| tokens.windows(2).any(|pair| pair == [Token::Word(name), Token::Symbol('(')]);
        if named("recursive") || named("namespace") {
            return Err(("uses `recursive` or `namespace`".into(), "write the result out instead of collecting it"));
        }
        match self.macros.iter().find(is_called).filter(|_| self.in_macro) {
            Some(name) => {
                Err((format!("calls the macro `{name}` from a macro"), "write the text out where it is used"))
            }
            None => Ok(()),
        }
    }

    /// Returns the weight of an expression.
    fn weight(&self, statement: &str, tokens: &[Token<'t>]) -> Result<usize, Refusal> {
        let named = tokens.iter().filter_map(|token| match token {
            Token::Word(word) => self.weights.get(word),
            _ => None,
        });
        let multiplies = tokens.contains(&Token::Symbol('*'));
        let joins = tokens.iter().filter(|token| matches!(token, Token::Symbol('~' | '+' | '|'))).count();
        let is_plain_output =
            statement.is_empty() && !tokens.iter().any(|token| matches!(token, Token::Symbol('|' | '[')));
        let product = if multiplies && !is_plain_output { PRODUCT } else { 0 };
        let weight = named.sum::<usize>() + joins + product;
        if weight > MAX_WEIGHT {
            let hint = "join fewer values and no products, or write them out one after the other: {{ a }}{{ b }}";
            return Err(("builds one value from too many others".into(), hint));
        }
        Ok(weight.max(1))
    }

    /// Records the names of an assignment: all words for a loop, else those before `=`.
    fn assign(&mut self, tokens: &[Token<'t>], weight: usize) {
        let end = tokens
            .iter()
            .rposition(|token| *token == Token::Symbol('='))
            .or_else(|| tokens.iter().position(|token| *token == Token::Word("in")));
        for token in &tokens[..end.unwrap_or(tokens.len())] {
            if let Token::Word(name) = token {
                let known = self.weights.entry(name).or_default();
                *known = (*known).max(weight);
            }
        }
    }
}

/// Counts the operators that nest, and the depth of brackets.
fn operators(tokens: &[Token<'_>]) -> Result<(), Refusal> {
    let (mut levels, mut total) = (vec![0_usize], 0_usize);
    for token in tokens {
        match token {
            Token::Symbol('(' | '[' | '{') => levels.push(0),
            Token::Symbol(')' | ']' | '}') if levels.len() > 1 => total -= levels.pop().unwrap_or_default(),
            Token::Symbol(',') => total -= levels.last_mut().map(std::mem::take).unwrap_or_default(),
            Token::Symbol(':') => {}
            Token::Word(word) if !WORD_OPERATORS.contains(word) => {}
            Token::Symbol(_) | Token::Word(_) => {
                *levels.last_mut().expect("one level is never closed") += 1;
                total += 1;
            }
            Token::Number | Token::Text => {}
        }
        if levels.len() > MAX_DEPTH {
            return Err((format!("nests brackets more than {MAX_DEPTH} deep"), "split the expression with {% set %}"));
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
        check(text).err().map(|found| found.what)
    }

    #[test]
    fn template_that_recurses_or_grows_is_refused_before_parsing() {
        let chain =
            |operator: &str, count: usize| format!("{{{{ node.id{} }}}}", format!(" {operator} node.id").repeat(count));
        let nested = |count: usize| format!("{{{{ {}1{} }}}}", "(".repeat(count), ")".repeat(count));
        let blocks = |count: usize| "{% if true %}".repeat(count) + &"{% endif %}".repeat(count);
        let elif = |count: usize| format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(count));
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
            ("{% set l = [1] * 9999999999 %}{{ l|sort }}".to_owned(), "too many others"),
            ("{% set n = namespace(x=1) %}".to_owned(), "namespace"),
            ("{% macro m(x) %}{{ m(x) }}{% endmacro %}".to_owned(), "macro"),
            ("{% include \"rootfs/etc/x.j2\" %}".to_owned(), "include"),
            ("x".repeat(MAX_TEXT + 1), "bytes"),
        ];
        for (text, why) in refused {
            let shown: String = text.chars().take(60).collect();
            assert!(refusal(&text).is_some_and(|what| what.contains(why)), "{shown}: {:?}", refusal(&text));
        }
        let accepted = [
            chain("~", 40),
            nested(30),
            blocks(30),
            format!("{{{{ [{}] }}}}", "node.id, ".repeat(500)),
            "{# {{ a ~ b #}{% raw %}{{ ( ( {% endraw %}".to_owned(),
            "{% set mb = vars.gb * 1024 %}{{ mb }} {{ vars.gb * 1024 * 1024 }}".to_owned(),
            "{% for m in groups.x.members %}{{ m.id }}{{ \", \" if not loop.last }}{% endfor %}".to_owned(),
        ];
        for text in accepted {
            assert_eq!(refusal(&text), None, "{text}");
        }
    }

    #[test]
    fn captured_block_of_a_large_template_has_less_fuel() {
        let text = |body: &str| format!("{{% set x %}}{body}{{% endset %}}");
        assert_eq!(check(&"y".repeat(1000)), Ok(FUEL));
        assert!(check(&text(&"y".repeat(100_000))).is_ok_and(|fuel| fuel < 1000));
    }
}
