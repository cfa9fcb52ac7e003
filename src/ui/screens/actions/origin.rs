//! The page from which an order was given: its result leads back there.

use crate::PREFIX;
use axum::http::{HeaderMap, Uri, header::REFERER};
use maud::{Markup, html};

/// Maximum length of a path, in bytes.
const MAX_PATH: usize = 4000;
/// Pages that only a form opens.
const FORMS: [&str; 2] = ["/actions/", "/inbox/approve"];

/// Returns the path and the query of the page that sent a form, if it is a page of this UI.
pub(in crate::screens) fn previous_page(headers: &HeaderMap) -> Option<String> {
    let referer: Uri = headers.get(REFERER)?.to_str().ok()?.parse().ok()?;
    checked(&without_selection(referer.path_and_query()?.as_str()))
}

/// Removes the parameter that ticks all nodes of a list: the next order is for others.
fn without_selection(path: &str) -> String {
    let Some((page, query)) = path.split_once('?') else { return path.to_owned() };
    let kept: Vec<_> = query.split('&').filter(|pair| !pair.starts_with("all=")).collect();
    if kept.is_empty() { page.to_owned() } else { format!("{page}?{}", kept.join("&")) }
}

/// Returns a path to which a link of a page may lead. A form may contain anything.
pub(in crate::screens) fn checked(path: &str) -> Option<String> {
    let page = path.strip_prefix(PREFIX)?;
    let is_page = page.starts_with('/') && !FORMS.iter().any(|form| page.starts_with(form));
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    (is_page && is_plain && path.len() <= MAX_PATH).then(|| path.to_owned())
}

/// Renders the link to the page from which an order was given. `default` is a path below the UI.
pub(in crate::screens) fn back_link(back: &str, default: &str) -> Markup {
    let path = checked(back).unwrap_or_else(|| format!("{PREFIX}{default}"));
    let page = path.strip_prefix(PREFIX).unwrap_or_default();
    let text = match page {
        page if page.starts_with("/nodes/") => "Back to the node",
        page if page.starts_with("/nodes") => "Back to the nodes",
        page if page.starts_with("/inbox") => "Back to the inbox",
        _ => "Back",
    };
    html! { a.button href=(path) { (text) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn way_back_does_not_select_all_nodes_again() {
        for (path, expected) in [
            ("/ui/nodes?phase=online&all=1&col=model", "/ui/nodes?phase=online&col=model"),
            ("/ui/nodes?all=1", "/ui/nodes"),
            ("/ui/nodes", "/ui/nodes"),
        ] {
            assert_eq!(without_selection(path), expected);
        }
    }

    #[test]
    fn only_a_page_of_the_ui_is_a_way_back() {
        for path in ["/ui/", "/ui/nodes?q=a%20b&phase=online", "/ui/nodes/3f9a1c0e?tab=work"] {
            assert_eq!(checked(path).as_deref(), Some(path));
        }
        for path in [
            "",
            "/ui",
            "//evil.example/ui/",
            "https://evil.example/ui/",
            "javascript:alert(1)",
            "/v1/nodes",
            "/uix/",
            "/ui/actions/run",
            "/ui/inbox/approve",
            "/ui/\\evil.example",
            "/ui/a b",
            "/ui/\u{202e}",
        ] {
            assert_eq!(checked(path), None, "{path}");
        }
        assert_eq!(checked(&format!("/ui/{}", "x".repeat(MAX_PATH))), None);
    }

    #[test]
    fn referer_is_reduced_to_its_path() {
        let mut headers = HeaderMap::new();
        assert_eq!(previous_page(&headers), None);
        let referer = "https://meshd.example:8443/ui/nodes?label=rack%3Da";
        headers.insert(REFERER, referer.parse().expect("a header"));
        assert_eq!(previous_page(&headers).as_deref(), Some("/ui/nodes?label=rack%3Da"));
    }
}
