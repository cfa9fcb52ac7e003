//! The sign-in page.

use crate::{PREFIX, client::ApiError, html, session::SignIn};
use axum::{http::StatusCode, response::Response};
use maud::html;

/// Returns the sign-in form with the error of the last attempt.
pub(crate) fn page(sign_in: &SignIn, error: Option<&ApiError>) -> Response {
    let content = html! {
        h1 { "Sign in to meshd" }
        @if let Some(error) = error { (html::refusal(error)) }
        @match sign_in {
            SignIn::Token => {
                form.stack method="post" action=(format!("{PREFIX}/sign-in")) {
                    label for="token" { "API token" }
                    input id="token" name="token" type="password" autocomplete="off" required autofocus;
                    button.main { "Sign in" }
                }
                p.quiet { "An admin makes a token with " code { "meshd api-token create NAME --role operator" } "." }
            }
            SignIn::Link(_) => p { "Open the link that " code { "meshd ui" } " printed. It works once." },
        }
    };
    let status = error.map_or(StatusCode::OK, |error| error.status);
    html::bare(status, "Sign in", &content)
}
