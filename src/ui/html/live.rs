//! Live parts of a page: the navigation, and the elements with the attribute `data-live`. The
//! script asks every few seconds what changed, and gets those parts alone.

use meshd_types::Digest;
use std::{collections::BTreeSet, fmt::Write as _};

/// Number of characters of the digest of a part. An accident finds no second part with it.
const DIGEST_CHARS: usize = 16;

/// The live parts of a page: markup and digest of each, in their order.
pub(super) struct LiveParts<'t>(Vec<(&'t str, String)>);

impl<'t> LiveParts<'t> {
    pub(super) fn of(texts: &[&'t str]) -> Self {
        let parts = texts.iter().flat_map(|text| live_elements(text));
        let digest = |part: &str| {
            let mut digest = Digest::of(part.as_bytes()).to_string();
            digest.truncate(DIGEST_CHARS);
            digest
        };
        LiveParts(parts.map(|part| (part, digest(part))).collect())
    }

    /// Returns the entity tag: the digests of all parts. It is weak (RFC 9110, 8.8.1), because the
    /// rest of the page may differ.
    pub(super) fn tag(&self) -> String {
        let digests: Vec<_> = self.0.iter().map(|(_, digest)| digest.as_str()).collect();
        format!("W/\"{}\"", digests.join("."))
    }

    /// Returns a document with the parts that are not in an entity tag. A tag of another version of
    /// the page, or of no page, names other parts: then the document has all of them.
    pub(super) fn changes_since(&self, known: &str) -> String {
        let known = known.trim_start_matches("W/").trim_matches('"');
        let known: BTreeSet<_> = known.split('.').collect();
        let mut document = "<!DOCTYPE html><title>Changes</title>".to_owned();
        for (part, digest) in &self.0 {
            if known.contains(digest.as_str()) {
                continue;
            }
            // Without a table, a parser drops the element.
            let _ = match part.starts_with("<tbody") {
                true => write!(document, "<table>{part}</table>"),
                false => document.write_str(part),
            };
        }
        document
    }
}

/// Returns the live elements of a rendered text. Texts and values of attributes are escaped, so
/// each `<` begins a tag and each `>` ends one.
fn live_elements(mut text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    while let Some(start) = text.find('<') {
        text = &text[start..];
        let Some(end) = text.find('>') else { break };
        let tag = &text[..end];
        let length = if is_live(tag) { element_length(text, tag) } else { end + 1 };
        let (element, rest) = text.split_at(length);
        if is_live(tag) {
            found.push(element);
        }
        text = rest;
    }
    found
}

fn is_live(tag: &str) -> bool {
    let is_attribute = |names: &str| names.split(' ').any(|name| name == "data-live");
    // Values are between quotes.
    tag.starts_with("<nav id=\"nav\"") || tag.split('"').step_by(2).any(is_attribute)
}

/// Returns the length of the element with which a text begins, from its tag to its end.
fn element_length(text: &str, tag: &str) -> usize {
    let name = tag[1..].split(' ').next().unwrap_or_default();
    let close = format!("</{name}>");
    let is_opened = |more: &str| {
        let rest = more.strip_prefix('<').and_then(|more| more.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with([' ', '>']))
    };
    let mut depth = 0_usize;
    for (at, _) in text.match_indices('<') {
        let more = &text[at..];
        if is_opened(more) {
            depth += 1;
        } else if more.starts_with(&close) {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                return at + close.len();
            }
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use maud::html;

    fn page(hostile: &str, rows: &str) -> String {
        let page = html! {
            nav id="nav" { a href="/" { "home" } }
            p title=(hostile) { (hostile) }
            div id="a" data-live { div { div { (hostile) } } span { "x" } br; }
            divider { "no live part: data-live" }
            table { tbody id="rows" data-live { tr { td { (rows) } } } }
            section { p { "<div data-live>" } }
        };
        page.into_string()
    }

    #[test]
    fn live_elements_are_whole_and_hostile_text_is_none() {
        for hostile in ["x", "\" data-live ", "</div><div id='b' data-live>", "<nav id=\"nav\">"] {
            let page = page(hostile, "1");
            let parts = LiveParts::of(&[&page]);
            let ids: Vec<_> = parts.0.iter().map(|(part, _)| *part).collect();
            assert_eq!(ids.len(), 3, "{ids:?}");
            assert!(ids[0].starts_with("<nav id=") && ids[0].ends_with("</nav>"), "{ids:?}");
            assert!(ids[1].starts_with("<div id=\"a\"") && ids[1].ends_with("<br></div>"));
            assert_eq!(ids[2], "<tbody id=\"rows\" data-live><tr><td>1</td></tr></tbody>");
        }
    }

    #[test]
    fn only_parts_that_are_not_in_the_tag_are_sent() {
        let before = page("x", "1");
        let after = page("x", "2");
        let before = LiveParts::of(&[&before]);
        let after = LiveParts::of(&[&after]);
        assert_ne!(before.tag(), after.tag());
        let rows = "<table><tbody id=\"rows\" data-live><tr><td>2</td></tr></tbody></table>";
        assert_eq!(
            after.changes_since(&before.tag()),
            format!("<!DOCTYPE html><title>Changes</title>{rows}")
        );
        for unknown in ["", "\"none\"", "W/\"\"", "W/\"0000000000000000.\"", "\u{e9}"] {
            assert_eq!(after.changes_since(unknown).matches("id=").count(), 3, "{unknown}");
        }
    }
}
