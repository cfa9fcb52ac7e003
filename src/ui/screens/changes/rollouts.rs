//! Rollouts: planned changes of many nodes, with the board of their waves.

use super::progress;
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    html::{self, Page, display_text, maybe, plain, time},
    request_checks::{fields, redirect},
    screens::{Answer, actions, actions::count_text},
};
use axum::{
    body::Body,
    extract::{Path, Query},
    http::{HeaderMap, Request},
};
use maud::{Markup, html};
use meshd_api::{RolloutNodeView, RolloutView, UndoRollout, WaveView, routes as api};
use meshd_model::rollouts::{Floor, NodeStage, RolloutState};
use serde::Deserialize;

/// Rows of one page.
const ROWS: usize = 100;
/// Maximum number of waves on the board.
const MAX_WAVES: usize = 200;

/// Groups of the list: title, text of an empty group, states.
const GROUPS: [(&str, &str, &[RolloutState]); 4] = [
    (
        "In progress",
        "No rollout is in progress.",
        &[RolloutState::Running, RolloutState::Aborting, RolloutState::Failing],
    ),
    ("Paused", "No rollout is paused.", &[RolloutState::Paused]),
    ("Failed", "No rollout failed.", &[RolloutState::Failed]),
    ("Done", "No rollout is done.", &[RolloutState::Done, RolloutState::Aborted]),
];

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let path = api::LIST_ROLLOUTS.path([]).with("sort", "-started_at").with("limit", ROWS);
    let rollouts = client.list(path).await.map_err(|error| client.failed(&error))?;
    let content = html! {
        h1 { "Rollouts" }
        div id="rows" data-live {
            @if rollouts.rows.is_empty() { (first_step()) }
            @else { @for (title, empty, states) in GROUPS {
                h2 { (title) }
                @let listed = rollouts.rows.iter().filter(|rollout| states.contains(&rollout.state));
                @let rows: Vec<_> = listed.map(row).collect();
                (html::table(&["Rollout", "Change", "State", "Progress", "Started", "Reason", "By"], &rows, empty))
            } }
        }
    };
    Ok(Page { client: &client, title: "Rollouts".to_owned(), nav_path: "/rollouts", content }
        .answer(&headers))
}

fn first_step() -> Markup {
    html! {
        div.alert.idle { strong { "No rollout is on record." }
            p { "A rollout changes many nodes in waves, with canaries and a floor of nodes that serve. Plan one in a terminal:" }
            p { code { "meshd rollout plan gpu[01-40] --profile compute --floor 32" } }
        }
    }
}

fn row(rollout: &RolloutView) -> Vec<Markup> {
    vec![
        html! { a href=(format!("{PREFIX}/rollouts/{}", rollout.id)) { (rollout.id) } },
        plain(&rollout.target),
        badge(rollout.state),
        progress_cell(rollout),
        time(rollout.started_at),
        maybe(rollout.reason.as_ref().or(rollout.waits.as_ref())),
        plain(&rollout.by.principal),
    ]
}

/// Renders the nodes by progress, and the time that is left.
pub(super) fn progress_cell(rollout: &RolloutView) -> Markup {
    html! {
        (progress::bar(rollout.progress)) (rollout.progress.words())
        @if let Some(seconds) = rollout.eta_s.filter(|_| !rollout.state.is_final()) {
            span.quiet { " · " (progress::time_left(seconds)) }
        }
    }
}

pub(super) fn badge(state: RolloutState) -> Markup {
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

/// Columns of the nodes of a rollout.
const HEADS: [&str; 6] = ["Wave", "Node", "Stage", "Began", "Finished", "Reason"];
/// Stages of nodes that need somebody, or that change now.
const TROUBLED: &str = "failed,returning,returned";
const ACTIVE: &str = "draining,rebooting,soaking";

pub(crate) async fn one(
    client: ApiClient,
    Path(rollout): Path<String>,
    Query(RolloutNodePage { after }): Query<RolloutNodePage>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let list = || api::LIST_ROLLOUT_NODES.path([&rollout]).with("sort", "wave").with("limit", ROWS);
    let answers = tokio::try_join!(
        client.list(list().with_optional("after", after)),
        client.list(list().with("stage", TROUBLED)),
        client.list(list().with("stage", ACTIVE)),
        client.get(api::GET_ROLLOUT.path([&rollout])),
    );
    let (nodes, troubled, active, rollout) = answers.map_err(failed)?;
    let rows = |nodes: &[RolloutNodeView]| nodes.iter().map(node_row).collect::<Vec<_>>();
    let title = format!("Rollout {}", rollout.id);
    let content = html! {
        h1 { "Rollout " code { (rollout.id) } " " span id="state" data-live { (badge(rollout.state)) } }
        div id="reason" data-live { (reason(&rollout)) }
        section.card id="facts" data-live aria-label="Summary" { (facts(&rollout)) }
        @if actions::may_order(&client) { div id="orders" data-live { (buttons(&rollout)) } }
        div id="board" data-live {
            h2 { "Waves" }
            (board(&rollout))
            @if !troubled.rows.is_empty() { h2 { "Failed nodes" } (html::table(&HEADS, &rows(&troubled.rows), "")) }
            @if !active.rows.is_empty() { h2 { "Nodes in progress" } (html::table(&HEADS, &rows(&active.rows), "")) }
        }
        div id="rows" data-live {
            h2 { "All nodes" }
            (html::table(&HEADS, &rows(&nodes.rows), "It has no node."))
            @if let Some(next) = &nodes.next {
                p { a.button href=(format!("{PREFIX}/rollouts/{}?after={}", rollout.id, encoded(next))) { "Next page" } }
            }
        }
    };
    Ok(Page { client: &client, title, nav_path: "/rollouts", content }.answer(&headers))
}

/// Renders why a rollout stopped, or why no further node begins.
fn reason(rollout: &RolloutView) -> Markup {
    let class = match rollout.state {
        RolloutState::Failing | RolloutState::Failed => "alert bad",
        RolloutState::Done => "alert idle",
        _ => "alert warn",
    };
    html! {
        @if let Some(reason) = &rollout.reason { div class=(class) { (display_text(reason)) } }
        @if let Some(waits) = &rollout.waits { div.alert.busy { "No further node begins at present: " (display_text(waits)) } }
    }
}

fn facts(rollout: &RolloutView) -> Markup {
    let policy = &rollout.policy;
    let floors: Vec<_> = policy.floors.iter().map(Floor::to_string).collect();
    let floors = if floors.is_empty() { "none".to_owned() } else { floors.join(", ") };
    let undone =
        rollout.undoes.map(|id| html! { a href=(format!("{PREFIX}/rollouts/{id}")) { (id) } });
    html::facts(&[
        ("Progress", progress_cell(rollout)),
        ("Change", plain(&rollout.target)),
        (
            "Nodes",
            html! { (rollout.nodes) " in " (rollout.waves) " waves of " (policy.wave) @if policy.canaries > 0 { ", canaries first: " (policy.canaries) } },
        ),
        ("Nodes that serve, at least", plain(floors)),
        ("Failures, at most", plain(policy.max_failures)),
        ("One domain at a time", maybe(policy.domain.as_ref())),
        ("Begins", policy.start_at.map(time).unwrap_or_default()),
        ("Window", maybe(policy.window.map(|window| format!("{window} UTC")))),
        ("Health gate", maybe(policy.gate.as_ref())),
        ("Started", time(rollout.started_at)),
        ("Finished", rollout.finished_at.map(time).unwrap_or_default()),
        ("Undoes rollout", undone.unwrap_or_default()),
        ("By", plain(&rollout.by.principal)),
        ("Reason", maybe(rollout.by.reason.as_ref())),
    ])
}

/// Renders one row with a bar for each wave.
fn board(rollout: &RolloutView) -> Markup {
    let row = |wave: &WaveView| {
        let is_canary = wave.wave == 0 && rollout.policy.canaries > 0;
        let name = if is_canary { "canaries".to_owned() } else { wave.wave.to_string() };
        vec![plain(name), progress::bar(wave.progress), plain(wave.progress.words())]
    };
    let rows: Vec<_> = rollout.board.iter().take(MAX_WAVES).map(row).collect();
    html! {
        (html::table(&["Wave", "Board", "Nodes"], &rows, "It has no wave."))
        @if rollout.board.len() > MAX_WAVES {
            p.quiet { (rollout.board.len() - MAX_WAVES) " more waves are not shown." }
        }
    }
}

/// The orders that the state of a rollout permits. An abort is final, so its button is not beside
/// another one.
fn buttons(rollout: &RolloutView) -> Markup {
    let to = |order: &str| format!("{PREFIX}/rollouts/{}/{order}", rollout.id);
    let waiting = count_text(rollout.progress.waiting as usize);
    let active = count_text(rollout.progress.active as usize);
    let (order, label) = match rollout.state {
        RolloutState::Running => ("pause", "Pause"),
        RolloutState::Paused => ("resume", "Resume"),
        state if state.is_final() => return undo_form(rollout, &to("undo")),
        _ => return html! {},
    };
    html! {
        form.inline method="post" action=(to(order)) {
            button { (label) }
            span.quiet { @if order == "pause" { "No further node begins; " (active) " in progress are finished." } @else { (waiting) " still to change." } }
        }
        details.menu {
            summary { "Abort…" }
            form.stack.panel method="post" action=(to("abort")) {
                p { "The rollout ends. In progress: " (active) " are finished, and draining nodes return. Unchanged: " (waiting) "." }
                (html::reason_input("reason-abort"))
                button.danger { "Abort" }
            }
        }
    }
}

/// Renders the form that returns the changed nodes to what they ran.
fn undo_form(rollout: &RolloutView, to: &str) -> Markup {
    let changed = rollout.progress.done + rollout.progress.failed;
    html! {
        @if changed > 0 {
            details.menu {
                summary { "Undo…" }
                form.stack.panel method="post" action=(to) {
                    p { "Another rollout returns " (count_text(changed as usize)) " to what they ran, with the same waves and floors." }
                    (html::reason_input("reason-undo"))
                    button.danger { "Undo" }
                }
            }
        }
    }
}

fn node_row(record: &RolloutNodeView) -> Vec<Markup> {
    let id = record.node.to_string();
    // A failure is explained by the boot of the node.
    let tab = if record.stage.is_failure() { "?tab=boot" } else { "" };
    let name = html! {
        a href=(format!("{PREFIX}/nodes/{id}{tab}")) { (display_text(&record.name)) }
        @if id != record.name { " " (html::id_in_brackets(&id)) }
    };
    let class = match record.stage {
        NodeStage::Done => "good",
        stage if stage.is_failure() => "bad",
        stage if stage.is_active() => "busy",
        _ => "idle",
    };
    let at = |at: Option<_>| at.map(time).unwrap_or_default();
    vec![
        plain(record.wave),
        name,
        html::badge(class, record.stage.as_str()),
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
    let order = match order.as_str() {
        "pause" => api::PAUSE_ROLLOUT.path([&rollout]).with_body(&()),
        "resume" => api::RESUME_ROLLOUT.path([&rollout]).with_body(&()),
        "abort" => api::ABORT_ROLLOUT.path([&rollout]).with_body(&()),
        "undo" => api::UNDO_ROLLOUT.path([&rollout]).with_body(&UndoRollout::default()),
        _ => return Err(client.failed(&ApiError::no_such_action())),
    };
    let done = client.order_untyped(order, &actions::notes(&fields)).await;
    let done = done.map_err(|error| client.failed(&error))?;
    // An undo is another rollout.
    let shown = done["id"].as_str().unwrap_or(&rollout);
    Ok(redirect(&format!("{PREFIX}/rollouts/{}", encoded(shown))))
}
