//! The files of a node's overlay, as rendered for its next boot.

use crate::{
    PREFIX,
    client::{ApiClient, encoded},
    form::Fields,
    html::{self, Page, code, display_text, plain},
    plain_text::visible,
    screens::Answer,
};
use axum::{
    extract::{Path, Query},
    http::HeaderMap,
};
use maud::{Markup, html};
use meshd_api::{OverlayFileView, routes as api};

pub(crate) async fn page(
    client: ApiClient,
    Path(node): Path<String>,
    Query(query): Query<Fields>,
    headers: HeaderMap,
) -> Answer {
    let path = query.text("path");
    let files =
        client.get(api::LIST_NODE_OVERLAY_FILES.path([&node]).with_nonempty("path", path)).await;
    let files = files.map_err(|error| client.failed(&error))?;
    let here = format!("{PREFIX}/nodes/{}/overlay", encoded(&node));
    let content = html! {
        h1 { "Overlay of " (html::node_link(&node, &node)) }
        @match files.as_slice() {
            [file] if !path.is_empty() => (file_page(file, &here)),
            _ => (list(&files, &here)),
        }
    };
    Ok(Page { client: &client, title: format!("Overlay of {node}"), nav_path: "/nodes", content }
        .answer(&headers))
}

fn list(files: &[OverlayFileView], here: &str) -> Markup {
    let row = |file: &OverlayFileView| {
        let path = html! {
            @if file.kind == "file" { a href=(format!("{here}?path={}", encoded(&file.path))) { (display_text(&file.path)) } }
            @else { (display_text(&file.path)) }
            @if let Some(target) = &file.target { " → " (display_text(target)) }
            @if file.secret { " " (html::badge("warn", "secret")) }
        };
        vec![
            path,
            plain(&file.kind),
            plain(&file.origin),
            code(&file.mode),
            code(&file.owner),
            plain(file.size),
        ]
    };
    let rows: Vec<_> = files.iter().map(row).collect();
    html! {
        p { "Files of the next boot. Placeholders replace secrets." }
        (html::table(&["Path", "Kind", "From", "Mode", "Owner", "Bytes"], &rows, "It has no files."))
    }
}

fn file_page(file: &OverlayFileView, here: &str) -> Markup {
    html! {
        p { a href=(here) { "All files" } }
        (html::facts(&[
            ("Path", code(&file.path)),
            ("From", plain(&file.origin)),
            ("Mode", code(&file.mode)),
            ("Owner", code(&file.owner)),
            ("Bytes", plain(file.size)),
            ("SHA-256", code(file.digest)),
        ]))
        @match &file.text {
            Some(text) => {
                @if file.size > OverlayFileView::MAX_TEXT as u64 { p.quiet { "Its beginning:" } }
                pre.output tabindex="0" { (visible(text)) }
            }
            None => p.quiet { "Its content is not shown." },
        }
    }
}
