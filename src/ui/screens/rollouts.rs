//! Rollouts: planned changes of many nodes, with the board of their waves.

use super::{Answer, actions};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    html::{self, Page, display_text, maybe, plain, time},
    request_checks::{fields, redirect},
};
use axum::{
    body::Body,
    extract::{Path, Query},
    http::{HeaderMap, Request},
};
use maud::{Markup, html};
use meshd_api::{RolloutNodeView, RolloutView, WaveProgress, WaveView, routes as api};
use meshd_model::rollouts::RolloutState;
use serde::Deserialize;

/// Rows of one page.
const ROWS: usize = 100;
/// Maximum number of waves on the board.
const MAX_WAVES: usize = 200;

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let path = api::LIST_ROLLOUTS.path([]).with("sort", "-started_at").with("limit", ROWS);
    let rollouts = client.list(path).await.map_err(|error| client.failed(&error))?;
    let rows: Vec<_> = rollouts.rows.iter().map(row).collect();
    let content = html! {
        h1 { "Rollouts" }
        div id="rows" data-live {
            (html::table(
                &["Rollout", "Change", "State", "Nodes", "Started", "By"],
                &rows,
                "No rollout is on record. Start one with `meshd rollout start`.",
            ))
        }
    };
    Ok(Page { client: &client, title: "Rollouts".to_owned(), nav_path: "/rollouts", content }
        .answer(&headers))
}

fn row(rollout: &RolloutView) -> Vec<Markup> {
    vec![
        html! { a href=(format!("{PREFIX}/rollouts/{}", rollout.id)) { (rollout.id) } },
        plain(rollout.target.to_string()),
        badge(rollout.state),
        plain(rollout.progress.words()),
        time(rollout.started_at),
        plain(rollout.by.principal.to_string()),
    ]
}

fn badge(state: RolloutState) -> Markup {
    let class = match state {
        RolloutState::Running => "busy",
        RolloutState::Paused | RolloutState::Aborting => "warn",
        RolloutState::Failing | RolloutState::Failed => "bad",
        RolloutState::Done => "good",
        RolloutState::Aborted => "idle",
    };
    html::badge(class, state.as_str())
}

/// Query of the page of one rollout.
#[derive(Debug, Deserialize)]
pub(crate) struct RolloutNodePage {
    #[serde(default)]
    after: Option<String>,
}

pub(crate) async fn one(
    client: ApiClient,
    Path(rollout): Path<String>,
    Query(RolloutNodePage { after }): Query<RolloutNodePage>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let nodes = api::LIST_ROLLOUT_NODES.path([&rollout]).with("sort", "wave").with("limit", ROWS);
    let nodes = client.list(nodes.with_optional("after", after)).await.map_err(failed)?;
    let rollout = client.get(api::GET_ROLLOUT.path([&rollout])).await.map_err(failed)?;
    let rows: Vec<_> = nodes.rows.iter().map(node_row).collect();
    let waves: Vec<_> = rollout.board.iter().take(MAX_WAVES).map(wave_row).collect();
    let title = format!("Rollout {}", rollout.id);
    let content = html! {
        h1 { "Rollout " (rollout.id) " " (badge(rollout.state)) }
        div id="rows" data-live {
            (html::table(&["Rollout", "Change", "State", "Nodes", "Started", "By"], &[row(&rollout)], ""))
            @if let Some(why) = rollout.reason.as_ref().or(rollout.waits.as_ref()) {
                p { (display_text(why)) }
            }
            @if let Some(seconds) = rollout.eta_s {
                p.quiet { "About " (seconds.div_ceil(60)) " minutes until its end." }
            }
            h2 { "Waves" }
            (html::table(&["Wave", "Waiting", "In progress", "Done", "Failed", "Skipped"], &waves, "It has no wave."))
            @if rollout.board.len() > MAX_WAVES {
                p.quiet { (rollout.board.len() - MAX_WAVES) " more waves are not shown." }
            }
            h2 { "Nodes" }
            (html::table(&["Wave", "Node", "Stage", "Began", "Finished", "Reason"], &rows, "It has no node."))
            @if let Some(next) = &nodes.next {
                p { a href=(format!("{PREFIX}/rollouts/{}?after={}", rollout.id, encoded(next))) { "Next page" } }
            }
        }
        @if actions::may_order(&client) { (buttons(&rollout)) }
    };
    Ok(Page { client: &client, title, nav_path: "/rollouts", content }.answer(&headers))
}

/// The orders that the state of a rollout permits. An abort is final, so its button is not beside
/// another one.
fn buttons(rollout: &RolloutView) -> Markup {
    let to = |order: &str| format!("{PREFIX}/rollouts/{}/{order}", rollout.id);
    let (order, label) = match rollout.state {
        RolloutState::Running => ("pause", "Pause"),
        RolloutState::Paused => ("resume", "Resume"),
        _ => return html! {},
    };
    html! {
        form.inline method="post" action=(to(order)) {
            button { (label) }
        }
        details {
            summary { "Abort…" }
            form.stack method="post" action=(to("abort")) {
                p { "The rollout ends. Nodes in progress are finished, and draining nodes return." }
                (html::reason_input("reason-abort"))
                button.danger { "Abort" }
            }
        }
    }
}

fn wave_row(wave: &WaveView) -> Vec<Markup> {
    let WaveProgress { waiting, active, done, failed, skipped } = wave.progress;
    let mut cells = vec![plain(wave.wave)];
    cells.extend([waiting, active, done, failed, skipped].map(|count| match count {
        0 => html! {},
        count => plain(count),
    }));
    cells
}

fn node_row(record: &RolloutNodeView) -> Vec<Markup> {
    let id = record.node.to_string();
    let name = html! {
        a href=(format!("{PREFIX}/nodes/{id}")) { (display_text(&record.name)) }
        @if id != record.name { " " (html::id_in_brackets(&id)) }
    };
    let at = |at: Option<_>| at.map(time).unwrap_or_default();
    vec![
        plain(record.wave),
        name,
        plain(record.stage.as_str()),
        at(record.began_at),
        at(record.finished_at),
        maybe(record.reason.as_ref()),
    ]
}

pub(crate) async fn change_state(
    client: ApiClient,
    Path((rollout, order)): Path<(String, String)>,
    request: Request<Body>,
) -> Answer {
    let fields = fields(request).await?;
    let route = match order.as_str() {
        "pause" => api::PAUSE_ROLLOUT,
        "resume" => api::RESUME_ROLLOUT,
        "abort" => api::ABORT_ROLLOUT,
        _ => return Err(client.failed(&ApiError::no_such_action())),
    };
    let order = route.path([&rollout]).with_body(&());
    let done = client.order_untyped(order, &actions::notes(&fields)).await;
    done.map_err(|error| client.failed(&error))?;
    Ok(redirect(&format!("{PREFIX}/rollouts/{}", encoded(&rollout))))
}
