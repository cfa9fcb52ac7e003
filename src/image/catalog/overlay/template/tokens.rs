//! Tags of a template, by minijinja's own tokenizer, so that the bounds see all that its parser
//! sees.

use minijinja::{
    machinery::{self, WhitespaceConfig},
    syntax::SyntaxConfig,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'t> {
    Word(&'t str),
    Number,
    Text,
    /// An operator or a bracket. `<` stands for all comparisons, `^` for the power, `/` for both
    /// divisions.
    Symbol(char),
}

/// A `{{ }}` or `{% %}`.
pub(super) struct Tag<'t> {
    pub(super) line: usize,
    pub(super) is_statement: bool,
    pub(super) tokens: Vec<Token<'t>>,
}

/// Splits a template into its tags, up to the first error: the parser reads no further and reports
/// it.
pub(super) fn tags(text: &str) -> Vec<Tag<'_>> {
    use machinery::Token as T;
    let whitespace =
        WhitespaceConfig { keep_trailing_newline: true, ..WhitespaceConfig::default() };
    let mut tags: Vec<Tag<'_>> = Vec::new();
    for (token, span) in
        machinery::tokenize(text, false, SyntaxConfig, whitespace).map_while(Result::ok)
    {
        match token {
            T::TemplateData(_) | T::VariableEnd | T::BlockEnd => {}
            T::VariableStart | T::BlockStart => tags.push(Tag {
                line: span.start_line.into(),
                is_statement: matches!(token, T::BlockStart),
                tokens: Vec::new(),
            }),
            token => {
                if let Some(tag) = tags.last_mut() {
                    tag.tokens.push(plain(&token));
                }
            }
        }
    }
    tags
}

fn plain<'t>(token: &machinery::Token<'t>) -> Token<'t> {
    use machinery::Token as T;
    Token::Symbol(match token {
        T::Ident(word) => return Token::Word(word),
        T::Int(_) | T::Int128(_) | T::Float(_) => return Token::Number,
        T::Plus => '+',
        T::Minus => '-',
        T::Mul => '*',
        T::Div | T::FloorDiv => '/',
        T::Pow => '^',
        T::Mod => '%',
        T::Dot => '.',
        T::Comma => ',',
        T::Colon => ':',
        T::Tilde => '~',
        T::Assign => '=',
        T::Pipe => '|',
        T::Eq | T::Ne | T::Gt | T::Gte | T::Lt | T::Lte => '<',
        T::BracketOpen => '[',
        T::BracketClose => ']',
        T::ParenOpen => '(',
        T::ParenClose => ')',
        T::BraceOpen => '{',
        T::BraceClose => '}',
        _ => return Token::Text,
    })
}
