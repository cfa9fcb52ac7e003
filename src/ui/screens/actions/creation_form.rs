//! The frame of the forms that create an object, and their inputs.

use super::{key_input, may_order};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError},
    form::Fields,
    html::{self, Page},
};
use axum::{http::HeaderMap, response::Response};
use maud::{Markup, html};

/// Texts of a form, which is sent to the page that lists the objects.
pub(super) struct CreationForm {
    pub(super) title: &'static str,
    /// Path of the list below `/ui`.
    pub(super) list: &'static str,
    pub(super) button: &'static str,
    /// Shown instead of the form to users without the role operator.
    pub(super) denied: &'static str,
}

impl CreationForm {
    /// Returns the page of the form. `error` rejected the last submission; it is shown above the
    /// form and sets the status.
    pub(super) fn answer(
        &self,
        client: &ApiClient,
        headers: &HeaderMap,
        inputs: &Markup,
        error: Option<&ApiError>,
    ) -> Response {
        let list = format!("{PREFIX}{}", self.list);
        let content = html! {
            h1 { (self.title) }
            @if let Some(error) = error { (html::refusal(error)) }
            @if may_order(client) {
                form.stack method="post" action=(list) {
                    (key_input(client))
                    (inputs)
                    div.actions {
                        button.main { (self.button) }
                        a.button href=(list) { "Cancel" }
                    }
                }
            } @else {
                p { (self.denied) }
            }
        };
        let mut answer =
            Page { client, title: self.title.to_owned(), nav_path: self.list, content }
                .answer(headers);
        if let Some(error) = error {
            *answer.status_mut() = error.status;
        }
        answer
    }
}

/// Renders the input of one line, with the submitted value.
pub(super) fn text_input(fields: &Fields, name: &str, label: &str, example: &str) -> Markup {
    html! {
        label for=(name) { (label) }
        input id=(name) name=(name) value=(fields.text(name)) placeholder=(example) maxlength="500";
    }
}
