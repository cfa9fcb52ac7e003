//! Access control: API tokens, enrolment tokens, roots of the certificate authority.
//!
//! | module | content |
//! | --- | --- |
//! | `credential_changes` | create and revoke tokens, replace the root |

mod credential_changes;

pub(crate) use credential_changes::{
    create_api_token, revoke_api_token, revoke_enrolment_token, rotate_ca,
};

use super::Answer;
use crate::{
    client::{ApiClient, ApiError},
    html::{self, Page, code, maybe, plain, time},
    names::NodeNames,
};
use axum::http::HeaderMap;
use credential_changes::{api_token_form, revoke_form, rotate_form};
use maud::{Markup, html};
use meshd_api::{ApiTokenView, RootView, TokenView, routes as api};
use meshd_trust::Role;

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let content = content(&client).await.map_err(|error| client.failed(&error))?;
    Ok(Page { client: &client, title: "Access".to_owned(), nav_path: "/access", content }
        .answer(&headers))
}

async fn content(client: &ApiClient) -> Result<Markup, ApiError> {
    let roots = client.get(api::LIST_ROOTS.path([])).await?;
    let machines = client.get(api::LIST_TOKENS.path([])).await?;
    let names = client.node_names().await?;
    let is_admin = client.caller.role >= Role::Admin;
    Ok(html! {
        h1 { "Access" }
        h2 { "API tokens" }
        @if client.caller.role >= Role::Auditor {
            (api_tokens(&client.get(api::LIST_API_TOKENS.path([])).await?, is_admin))
        } @else {
            p.quiet { "API tokens require the role auditor." }
        }
        h2 { "Enrolment tokens of machines that are not netbooted" }
        (enrolment_tokens(&machines, &names, is_admin))
        h2 { "Certificate authority" }
        (authority(&roots, is_admin))
    })
}

fn api_tokens(tokens: &[ApiTokenView], is_admin: bool) -> Markup {
    let row = |token: &ApiTokenView| {
        let end = match token.expires_at {
            Some(at) => html! { (time(at)) @if token.expired { " " (html::badge("bad", "over")) } },
            None => html! { "until revoked" },
        };
        let revoke = if is_admin {
            revoke_form("api-tokens", token.name.as_str())
        } else {
            Markup::default()
        };
        vec![plain(&token.name), plain(token.role), time(token.created_at), end, revoke]
    };
    let rows: Vec<_> = tokens.iter().map(row).collect();
    html! {
        (html::table(&["Name", "Role", "Created", "Ends", "Actions"], &rows, "There is no API token."))
        @if is_admin { (api_token_form()) }
    }
}

fn enrolment_tokens(tokens: &[TokenView], names: &NodeNames, is_admin: bool) -> Markup {
    let row = |token: &TokenView| {
        let revoke = if is_admin {
            revoke_form("tokens", &token.hash.to_string())
        } else {
            Markup::default()
        };
        vec![
            code(token.hash.short()),
            names.link(token.node),
            time(token.expires_at),
            token.used_at.map(time).unwrap_or_default(),
            maybe(token.used_from),
            revoke,
        ]
    };
    let rows: Vec<_> = tokens.iter().map(row).collect();
    html::table(&["Token", "Node", "Ends", "Used", "From", "Actions"], &rows, "There is none.")
}

fn authority(roots: &[RootView], is_admin: bool) -> Markup {
    let row = |root: &RootView| {
        let state = if root.active {
            html::badge("good", "active")
        } else {
            html::badge("idle", "still trusted")
        };
        vec![code(&root.root), state, root.until.map(time).unwrap_or_default(), plain(root.nodes)]
    };
    let rows: Vec<_> = roots.iter().map(row).collect();
    html! {
        (html::table(&["Root", "State", "Trusted until", "Nodes"], &rows, "There is none."))
        @if is_admin { (rotate_form()) }
    }
}
