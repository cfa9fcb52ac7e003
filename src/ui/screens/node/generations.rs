//! The generations of a node, and what its next boot changes.

use crate::html::{self, code, display_text, plain, time};
use maud::{Markup, html};
use meshd_api::{DiffView, GenerationView};

pub(super) fn table(history: &[GenerationView], diff: Option<&DiffView>) -> Markup {
    let marks = |view: &GenerationView| {
        html! {
            @if view.runs { (html::badge("good", "runs")) " " }
            @if view.next { (html::badge("busy", "next")) " " }
            @if view.pinned { (html::badge("warn", "pinned")) }
        }
    };
    let row = |view: &GenerationView| {
        let delivered = &view.delivered;
        vec![
            code(delivered.generation.0.short()),
            marks(view),
            plain(&delivered.profile),
            plain(&delivered.image),
            code(delivered.version.short()),
            time(delivered.delivered_at),
        ]
    };
    let rows: Vec<_> = history.iter().map(row).collect();
    html! {
        @if let Some(diff) = diff {
            div.alert.warn { strong { "Its next boot changes its generation." } (difference(diff)) }
        }
        (html::table(&["Generation", "State", "Profile", "Image", "Version", "Given"], &rows, "No generation was delivered."))
    }
}

fn difference(view: &DiffView) -> Markup {
    let diff = &view.diff;
    let lists = [
        ("kernel arguments", &diff.args_removed, &diff.args_added),
        ("packages", &diff.packages_removed, &diff.packages_added),
    ];
    html! {
        ul {
            @for (what, [before, after]) in &diff.changed { li { (what) ": " del { (display_text(before)) } " " ins { (display_text(after)) } } }
            @for (what, removed, added) in lists {
                @if !removed.is_empty() || !added.is_empty() {
                    li { (what) ": " @for word in removed { del { (display_text(word)) } " " } @for word in added { ins { (display_text(word)) } " " } }
                }
            }
            @for file in &diff.files { li { code { (file.path) } " " (display_text(&file.attributes.join(", "))) " from " (display_text(&file.origin)) } }
        }
    }
}
