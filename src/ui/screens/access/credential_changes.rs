//! Creates and revokes tokens, and replaces the root of the certificate authority. Requires the
//! admin role.

use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    form::Fields,
    html::{self, Page, display_text},
    request_checks::{fields, redirect},
    screens::{Answer, actions},
};
use axum::{
    body::Body,
    extract::Path,
    http::{HeaderMap, Request},
};
use maud::{Markup, html};
use meshd_api::{
    CreateApiToken, RotateCa,
    routes::{self as api, Empty, PostPath},
};
use meshd_trust::Role;

const SECONDS_PER_DAY: u64 = 24 * 3600;
/// Maximum lifetime in a form, in days.
const MAX_DAYS: u64 = 3650;

/// Converts a number of days to seconds; `None` if the field is empty.
fn seconds(fields: &Fields, name: &str) -> Result<Option<u64>, ApiError> {
    let text = fields.text(name);
    if text.is_empty() {
        return Ok(None);
    }
    let days = text.parse().ok().filter(|days| *days <= MAX_DAYS);
    let days: u64 = days.ok_or_else(|| {
        ApiError::bad_request("invalid number of days", "write a whole number, at most 3650")
    })?;
    Ok(Some(days * SECONDS_PER_DAY))
}

pub(super) fn api_token_form() -> Markup {
    html! {
        details {
            summary { "Create API token…" }
            form.stack method="post" action=(format!("{PREFIX}/access/api-tokens")) {
                label for="name" { "Name of its user or program" }
                input id="name" name="name" required maxlength="63";
                label for="role" { "Role" }
                select id="role" name="role" { @for role in Role::ALL { option { (role) } } }
                label for="days" { "Lifetime in days; empty: until it is revoked" }
                input id="days" name="days" inputmode="numeric" value="90" maxlength="4";
                (html::reason_input("token-reason"))
                button.main { "Create" }
            }
        }
    }
}

/// Renders the form that revokes a token. `kind` is the path segment of the API.
pub(super) fn revoke_form(kind: &str, name: &str) -> Markup {
    html! {
        details {
            summary { "Revoke…" }
            form.stack method="post" action=(format!("{PREFIX}/access/{kind}/{}/revoke", encoded(name))) {
                p { "It becomes invalid immediately." }
                button.danger { "Revoke " (display_text(name.get(..12).unwrap_or(name))) }
            }
        }
    }
}

pub(super) fn rotate_form() -> Markup {
    html! {
        details {
            summary { "Replace the root…" }
            form.stack method="post" action=(format!("{PREFIX}/access/ca/rotate")) {
                p { "A new root issues certificates from now on. Linked nodes receive it. A node that stays off until the old root expires has to boot." }
                label for="grace" { "Grace time of the old root in days; empty: the default; 0: none, every link ends now" }
                input id="grace" name="grace" inputmode="numeric" maxlength="4";
                label { input type="checkbox" name="enrol_again" value="1"; " With 0 days: linked nodes enrol again without a boot" }
                (html::reason_input("ca-reason"))
                button.danger { "Replace the root" }
            }
        }
    }
}

/// Creates a token and shows it. The text of a token appears only in this response, so the response
/// is not a redirect.
pub(crate) async fn create_api_token(
    client: ApiClient,
    headers: HeaderMap,
    request: Request<Body>,
) -> Answer {
    let fields = fields(request).await?;
    let failed = |error| client.failed(&error);
    let role = Role::ALL.into_iter().find(|role| role.as_str() == fields.text("role"));
    let order = CreateApiToken {
        name: fields.text("name").parse().map_err(|error| {
            failed(ApiError::bad_request(format!("{error}"), "go back and correct it"))
        })?,
        role: role.ok_or_else(|| {
            failed(ApiError::bad_request("choose a role", "go back and choose one"))
        })?,
        expires_in: seconds(&fields, "days").map_err(failed)?,
    };
    let created =
        client.order(api::CREATE_API_TOKEN.path([]), &order, &actions::notes(&fields)).await;
    let created = created.map_err(failed)?;
    let content = html! {
        h1 { "API token " (display_text(created.token.name.as_str())) }
        div.alert.good role="status" { "Copy it now; it is not shown again." }
        pre tabindex="0" { (display_text(&created.secret)) }
        p { a href=(format!("{PREFIX}/access")) { "Access" } }
    };
    Ok(Page { client: &client, title: "API token".to_owned(), nav_path: "/access", content }
        .answer(&headers))
}

pub(crate) async fn revoke_api_token(
    client: ApiClient,
    Path(name): Path<String>,
    request: Request<Body>,
) -> Answer {
    revoke(&client, api::REVOKE_API_TOKEN.path([&name]), request).await
}

pub(crate) async fn revoke_enrolment_token(
    client: ApiClient,
    Path(token): Path<String>,
    request: Request<Body>,
) -> Answer {
    revoke(&client, api::REVOKE_TOKEN.path([&token]), request).await
}

pub(crate) async fn rotate_ca(client: ApiClient, request: Request<Body>) -> Answer {
    let fields = fields(request).await?;
    let failed = |error| client.failed(&error);
    let grace_s = seconds(&fields, "grace").map_err(failed)?;
    let order = RotateCa { grace_s, enrol_again: fields.is_ticked("enrol_again") };
    let order = api::ROTATE_ROOT.path([]).with_body(&order);
    client.order_untyped(order, &actions::notes(&fields)).await.map_err(failed)?;
    Ok(redirect(&format!("{PREFIX}/access")))
}

async fn revoke<R>(client: &ApiClient, path: PostPath<Empty, R>, request: Request<Body>) -> Answer {
    let fields = fields(request).await?;
    client
        .order_untyped(path.with_body(&()), &actions::notes(&fields))
        .await
        .map_err(|error| client.failed(&error))?;
    Ok(redirect(&format!("{PREFIX}/access")))
}
