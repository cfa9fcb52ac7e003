//! Overlays with their declared variables and their unrendered files.

use super::{Answer, profile_link, words};
use crate::{
    PREFIX,
    client::{ApiClient, encoded},
    form::Fields,
    html::{self, Page, code, display_text, plain},
    plain_text::visible,
};
use axum::{
    extract::{Path, Query},
    http::HeaderMap,
};
use maud::{Markup, html};
use meshd_api::{
    OverlayDetail, OverlayFileView, OverlaySourceView, OverlayView, VariableView, routes as api,
};
use meshd_trust::Role;

pub(crate) async fn overlays(client: ApiClient, headers: HeaderMap) -> Answer {
    let overlays =
        client.get(api::LIST_OVERLAYS.path([])).await.map_err(|error| client.failed(&error))?;
    let row = |overlay: &OverlayView| {
        let services =
            overlay.services.iter().map(|(level, names)| format!("{level}: {}", names.join(" ")));
        vec![
            html! { a href=(overlay_page(&overlay.name)) { (display_text(&overlay.name)) } },
            plain(&overlay.description),
            plain(overlay.files),
            words(&overlay.packages),
            plain(services.collect::<Vec<_>>().join("; ")),
            words(&overlay.variables),
            html! { @for name in &overlay.profiles { (profile_link(name.as_str())) " " } },
        ]
    };
    let rows: Vec<_> = overlays.iter().map(row).collect();
    let content = html! {
        h1 { "Overlays" }
        (html::table(&["Name", "Purpose", "Files", "Packages", "Services", "Variables", "Profiles"], &rows, "The site has no overlay."))
    };
    Ok(Page { client: &client, title: "Overlays".to_owned(), nav_path: "/overlays", content }
        .answer(&headers))
}

/// Shows one overlay, or one of its files.
pub(crate) async fn overlay(
    client: ApiClient,
    Path(name): Path<String>,
    Query(query): Query<Fields>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let here = overlay_page(&name);
    let content = match query.text("path") {
        "" => {
            let detail = client.get(api::GET_OVERLAY.path([&name])).await.map_err(failed)?;
            let files = if client.caller.role >= Role::Operator {
                Some(client.get(api::LIST_OVERLAY_FILES.path([&name])).await.map_err(failed)?)
            } else {
                None
            };
            html! {
                h1 { "Overlay " (display_text(&name)) }
                (facts(&detail))
                h2 { "Variables" }
                (variables(&detail.declares))
                h2 { "Files" }
                @match &files {
                    Some(files) => (file_table(files, &here)),
                    None => p.quiet { "Files of overlays require the role operator." },
                }
            }
        }
        path => {
            let files = client
                .get(api::LIST_OVERLAY_FILES.path([&name]).with("path", path))
                .await
                .map_err(failed)?;
            html! {
                h1 { "Overlay " (display_text(&name)) }
                p { a href=(here) { "All files" } }
                @for file in &files { (content_of(file)) }
            }
        }
    };
    Ok(Page { client: &client, title: format!("Overlay {name}"), nav_path: "/overlays", content }
        .answer(&headers))
}

fn overlay_page(name: &str) -> String {
    format!("{PREFIX}/overlays/{}", encoded(name))
}

fn facts(detail: &OverlayDetail) -> Markup {
    let overlay = &detail.overlay;
    let services =
        overlay.services.iter().map(|(level, names)| format!("{level}: {}", names.join(" ")));
    html::facts(&[
        ("Purpose", plain(&overlay.description)),
        ("Digest", code(overlay.digest)),
        ("Packages", words(&overlay.packages)),
        ("Services", plain(services.collect::<Vec<_>>().join("; "))),
        ("Removes", words(&detail.removes)),
        (
            "Profiles",
            html! { @for name in &overlay.profiles { (profile_link(name.as_str())) " " } },
        ),
    ])
}

fn variables(declares: &[VariableView]) -> Markup {
    let row = |variable: &VariableView| {
        let marks = html! {
            @if variable.secret { (html::badge("warn", "secret")) " " }
            @if variable.required { (html::badge("idle", "required")) }
        };
        vec![
            code(&variable.name),
            plain(&variable.r#type),
            variable.default.as_ref().map(code).unwrap_or_default(),
            marks,
            words(&variable.choices),
            plain(&variable.description),
        ]
    };
    let rows: Vec<_> = declares.iter().map(row).collect();
    html::table(
        &["Name", "Type", "Default", "Notes", "Choices", "Purpose"],
        &rows,
        "It declares no variable.",
    )
}

fn file_table(files: &[OverlaySourceView], here: &str) -> Markup {
    let row = |file: &OverlaySourceView| {
        let path = html! {
            @if matches!(file.kind.as_str(), "file" | "template") {
                a href=(format!("{here}?path={}", encoded(&file.path))) { (display_text(&file.path)) }
            } @else { (display_text(&file.path)) }
            @if let Some(target) = &file.target { " → " (display_text(target)) }
            @if file.secret { " " (html::badge("warn", "secret")) }
            @if file.append { " " (html::badge("idle", "appended")) }
        };
        vec![path, plain(&file.kind), code(&file.mode), code(&file.owner), plain(file.size)]
    };
    let rows: Vec<_> = files.iter().map(row).collect();
    html::table(&["Path", "Kind", "Mode", "Owner", "Bytes"], &rows, "It has no files.")
}

fn content_of(file: &OverlaySourceView) -> Markup {
    let reason = match file.hidden.as_deref() {
        Some("secret") => "It is secret and not shown.",
        Some("binary") => "It is a binary file and not shown.",
        Some(_) => "It is not UTF-8 text and not shown.",
        None => "It has no content.",
    };
    html! {
        (html::facts(&[
            ("Path", code(&file.path)),
            ("Kind", plain(&file.kind)),
            ("Mode", code(&file.mode)),
            ("Owner", code(&file.owner)),
            ("Bytes", plain(file.size)),
        ]))
        @match &file.text {
            Some(text) => {
                @if file.size > OverlayFileView::MAX_TEXT as u64 { p.quiet { "Its beginning:" } }
                pre.output tabindex="0" { (visible(text)) }
            }
            None => p.quiet { (reason) },
        }
    }
}
