//! Style sheet and script of the web UI. Both are part of the program and are not minified.

use crate::PREFIX;
use axum::{
    http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    response::{IntoResponse as _, Response},
};

const STYLE: &str = include_str!("assets/style.css");
const SCRIPT: &str = include_str!("assets/script.js");
const CONSOLE: &str = include_str!("assets/console.js");
const ICON: &str = include_str!("assets/icon.svg");

/// Returns the asset at `path`.
pub(crate) fn find(path: &str) -> Option<Response> {
    let (text, media) = match path.strip_prefix(PREFIX)? {
        "/assets/style.css" => (STYLE, "text/css; charset=utf-8"),
        "/assets/script.js" => (SCRIPT, "text/javascript; charset=utf-8"),
        "/assets/console.js" => (CONSOLE, "text/javascript; charset=utf-8"),
        "/assets/icon.svg" => (ICON, "image/svg+xml"),
        _ => return None,
    };
    // Browsers must revalidate: after an upgrade of meshd, a page and its script must have the same
    // version.
    let headers =
        [(CONTENT_TYPE, media), (CACHE_CONTROL, "no-cache"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Some((headers, text).into_response())
}
