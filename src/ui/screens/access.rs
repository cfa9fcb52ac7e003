//! API tokens, tokens of machines, roots of the certificate authority.

use super::Answer;
use crate::{
    client::ApiClient,
    html::{self, Page, code, maybe, plain, time},
};
use axum::http::HeaderMap;
use maud::html;
use meshd_api::{ApiTokenView, RootView, TokenView};
use meshd_trust::Role;

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let failed = |error| client.failed(&error);
    let roots: Vec<RootView> = client.get("/v1/ca").await.map_err(failed)?;
    let machines: Vec<TokenView> = client.get("/v1/tokens").await.map_err(failed)?;
    let sees_tokens = client.caller.role >= Role::Auditor;
    let tokens: Vec<ApiTokenView> =
        if sees_tokens { client.get("/v1/api-tokens").await.map_err(failed)? } else { Vec::new() };
    let token = |token: &ApiTokenView| {
        let end = match token.expires_at {
            Some(at) => html! { (time(at)) @if token.expired { " " (html::badge("bad", "over")) } },
            None => html! { "until it is revoked" },
        };
        vec![plain(&token.name), plain(token.role), time(token.created_at), end]
    };
    let machine = |token: &TokenView| {
        vec![
            code(token.hash.short()),
            code(token.node),
            time(token.expires_at),
            token.used_at.map(time).unwrap_or_default(),
            maybe(token.used_from),
        ]
    };
    let root = |root: &RootView| {
        let state = if root.active { html::badge("good", "active") } else { html::badge("idle", "still trusted") };
        vec![code(&root.root), state, root.until.map(time).unwrap_or_default(), plain(root.nodes)]
    };
    let content = html! {
        h1 { "Access" }
        h2 { "API tokens" }
        @if sees_tokens {
            (html::table(&["Name", "Role", "Made", "Ends"], &tokens.iter().map(token).collect::<Vec<_>>(), "There is no API token."))
            p.quiet { "Make one with " code { "meshd api-token create NAME --role viewer" } ", revoke one with " code { "meshd api-token revoke NAME" } "." }
        } @else {
            p.quiet { "The API tokens are visible from the role auditor on." }
        }
        h2 { "Tokens of machines that are not netbooted" }
        (html::table(&["Token", "Node", "Ends", "Used", "From"], &machines.iter().map(machine).collect::<Vec<_>>(), "There is none."))
        h2 { "Certificate authority" }
        (html::table(&["Root", "State", "Trusted until", "Nodes"], &roots.iter().map(root).collect::<Vec<_>>(), "There is none."))
    };
    Ok(Page { client: &client, title: "Access".to_owned(), place: "/access", content }.answer(&headers))
}
