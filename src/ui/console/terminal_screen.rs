//! Renders the screen of an emulated terminal as HTML: rows of text in spans, whose classes name
//! colours and attributes.

use crate::plain_text::is_shown;
use maud::{Markup, html};
use std::num::NonZero;
use vt100::{Cell, Color, Screen};

/// Rows and columns of a serial console. A guest cannot query the size and assumes this one.
pub(crate) const SIZE: (NonZero<u16>, NonZero<u16>) =
    (NonZero::new(24).unwrap(), NonZero::new(80).unwrap());

/// Returns the classes of a cell: `f1` and `b4` are foreground and background in the 16 colours of
/// ECMA-48. Other colours appear as the default.
fn classes(cell: &Cell, is_cursor: bool) -> String {
    let mut ink = cell.fgcolor();
    let mut paper = cell.bgcolor();
    if cell.inverse() {
        (ink, paper) = (paper, ink);
    }
    let colour = |prefix: char, colour: Color| match colour {
        Color::Idx(index @ 0..16) => format!("{prefix}{index} "),
        _ => String::new(),
    };
    let is_plain_inverse = cell.inverse() && ink == Color::Default && paper == Color::Default;
    let marks = [
        (is_plain_inverse, "inverse "),
        (cell.bold(), "bold "),
        (cell.underline(), "underline "),
        (is_cursor, "cursor "),
    ];
    let marks = marks.iter().filter(|(is_set, _)| *is_set).map(|(_, class)| *class);
    let all = colour('f', ink) + &colour('b', paper) + &marks.collect::<String>();
    all.trim_end().to_owned()
}

/// Returns runs of cells with equal classes.
fn runs(screen: &Screen, row: u16) -> Vec<(String, String)> {
    let cursor = (!screen.hide_cursor()).then(|| screen.cursor_position());
    let mut runs: Vec<(String, String)> = Vec::new();
    for column in 0..screen.size().1.get() {
        let Some(cell) = screen.cell(row, column) else { break };
        if cell.is_wide_continuation() {
            continue;
        }
        let class = classes(cell, cursor == Some((row, column)));
        let text: String = cell.contents().chars().filter(|c| is_shown(*c)).collect();
        let text = if text.is_empty() { " " } else { &text };
        match runs.last_mut() {
            Some((last, run)) if *last == class => run.push_str(text),
            _ => runs.push((class, text.to_owned())),
        }
    }
    if let Some((class, run)) = runs.last_mut()
        && class.is_empty()
    {
        run.truncate(run.trim_end().len());
    }
    runs
}

/// Renders the screen with one line of text for each row.
pub(crate) fn html(screen: &Screen) -> Markup {
    html! {
        @for row in 0..screen.size().0.get() {
            @for (class, text) in runs(screen, row) {
                @if class.is_empty() { (text) } @else { span class=(class) { (text) } }
            }
            "\n"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(bytes: &[u8]) -> String {
        let mut parser = vt100::Parser::new(SIZE.0, SIZE.1, 0);
        parser.process(bytes);
        html(parser.screen()).into_string()
    }

    #[test]
    fn screen_has_colour_classes_cursor_and_escaped_text() {
        let text = shown(b"\x1b[1;31mred\x1b[0m <b>&\r\n$ ");
        let begin =
            "<span class=\"f1 bold\">red</span> &lt;b&gt;&amp;\n$ <span class=\"cursor\"> </span>";
        assert!(text.starts_with(begin), "{text}");
        assert_eq!(text.lines().count(), usize::from(SIZE.0.get()));
        assert!(shown(b"\x1b[7mx").starts_with("<span class=\"inverse\">x</span>"));
        assert!(shown(b"\x1b[7;34mx").starts_with("<span class=\"b4\">x</span>"));
        assert!(!shown(b"\x1b[?25l").contains("cursor"));
    }

    #[test]
    fn direction_marks_in_guest_output_are_removed() {
        let text = shown("id \u{202e}321\u{202c}\u{200b}\u{2066}e\u{301}".as_bytes());
        assert!(text.starts_with("id 321e\u{301}<span"), "{text}");
    }

    #[test]
    fn screen_shows_text_after_clear_and_cursor_move() {
        assert!(shown(b"abc\x1b[2J\x1b[Hnew").starts_with("new<span"));
    }

    proptest! {
        #[test]
        fn screen_of_random_bytes_keeps_row_count(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
            prop_assert_eq!(shown(&bytes).lines().count(), usize::from(SIZE.0.get()));
        }

        #[test]
        fn screen_of_random_control_sequences_keeps_row_count(text in "(\u{1b}\\[[0-9;?]{0,8}[@-~]|[ -~\u{3000}-\u{3100}\r\n\t\u{8}]){0,200}") {
            prop_assert_eq!(shown(text.as_bytes()).lines().count(), usize::from(SIZE.0.get()));
        }
    }
}
