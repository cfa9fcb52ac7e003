//! Bisections: searches for the first bad generation of a profile.

use crate::{
    PREFIX,
    client::{ApiClient, encoded},
    html::{self, Page, code, display_text, maybe, plain, time},
    names::NodeNames,
    request_checks::{fields, redirect},
    screens::{Answer, actions},
};
use axum::{
    body::Body,
    extract::Path,
    http::{HeaderMap, Request},
};
use maud::{Markup, html};
use meshd_api::{BisectionView, ProbeView, routes as api};
use meshd_model::{
    bisections::{BisectionState, ProbeVerdict},
    fleet::Generation,
};

/// Rows of the list. meshd keeps 100 bisections.
const ROWS: usize = 100;
/// Maximum number of generations on the page of one bisection.
const MAX_GENERATIONS: usize = 200;

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let path = api::LIST_BISECTIONS.path([]).with("sort", "-started_at").with("limit", ROWS);
    let bisections = client.list(path).await.map_err(|error| client.failed(&error))?;
    let rows: Vec<_> = bisections.rows.iter().map(row).collect();
    let content = html! {
        h1 { "Bisections" }
        p { "Spare nodes boot generations of a profile until the first bad one is found." }
        div id="rows" data-live {
            @if rows.is_empty() { (first_step()) }
            @else { (html::table(&["Bisection", "Profile", "State", "Found", "Boots", "Started", "By"], &rows, "")) }
        }
    };
    Ok(Page { client: &client, title: "Bisections".to_owned(), nav_path: "/bisections", content }
        .answer(&headers))
}

fn first_step() -> Markup {
    html! {
        div.alert.idle { strong { "No bisection is on record." }
            p { "Start one in a terminal, with a good and a bad generation and a program that decides: " }
            p { code { "meshd bisect gpu40 --good 3f2a --bad 91c0 --check jobs" } }
            p { "The generations of a profile are on its page: " a href=(format!("{PREFIX}/profiles")) { "Profiles" } "." }
        }
    }
}

pub(super) fn badge(state: BisectionState) -> Markup {
    let class = match state {
        BisectionState::Running | BisectionState::Returning => "busy",
        BisectionState::Done => "good",
        BisectionState::Failed => "bad",
        BisectionState::Aborted => "idle",
    };
    html::badge(class, state.as_str())
}

/// Returns the result, or what is left.
pub(super) fn progress_words(bisection: &BisectionView) -> String {
    match bisection.first_bad {
        Some(bad) => format!("{} is the first bad generation", bad.0.short()),
        None if bisection.state.is_final() => "no result".to_owned(),
        None => {
            let suspects = bisection.suspects;
            // The last boot leaves one suspect.
            let boots = suspects.max(1).next_power_of_two().trailing_zeros();
            format!("{suspects} generations left, at least {boots} boots")
        }
    }
}

fn row(bisection: &BisectionView) -> Vec<Markup> {
    vec![
        html! { a href=(format!("{PREFIX}/bisections/{}", bisection.id)) { (bisection.id) } },
        html! { a href=(format!("{PREFIX}/profiles/{}", bisection.profile)) { (bisection.profile) } },
        badge(bisection.state),
        html! { (progress_words(bisection)) @if let Some(reason) = &bisection.reason { ": " (display_text(reason)) } },
        plain(bisection.probes.len()),
        time(bisection.started_at),
        plain(&bisection.by.principal),
    ]
}

pub(crate) async fn one(
    client: ApiClient,
    Path(bisection): Path<String>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let search = client.get(api::GET_BISECTION.path([&bisection]));
    let (bisection, names) = tokio::try_join!(search, client.node_names()).map_err(failed)?;
    let probes: Vec<_> = bisection.probes.iter().map(|probe| probe_row(probe, &names)).collect();
    let title = format!("Bisection {}", bisection.id);
    let content = html! {
        h1 { "Bisection " code { (bisection.id) } " " span id="state" data-live { (badge(bisection.state)) } }
        div id="result" data-live { (result(&bisection)) }
        section.card id="facts" data-live aria-label="Summary" { (facts(&bisection, &names)) }
        @if actions::may_order(&client) { div id="orders" data-live { (abort_form(&bisection, &names)) } }
        div id="rows" data-live {
            h2 { "Boots" }
            (html::table(&["Generation", "Verdict", "Node", "Rollout", "Reason"], &probes, "No generation was booted yet."))
            h2 { "Generations" }
            (generations(&bisection))
        }
    };
    Ok(Page { client: &client, title, nav_path: "/bisections", content }.answer(&headers))
}

fn result(bisection: &BisectionView) -> Markup {
    html! {
        @if let Some(bad) = bisection.first_bad {
            div.alert.bad { strong { "First bad generation: " code { (bad) } }
                p { a href=(format!("{PREFIX}/profiles/{}", bisection.profile)) { "Profile " (bisection.profile) } " shows what each generation changed." }
            }
        }
        @if let Some(reason) = &bisection.reason {
            div class=(if bisection.first_bad.is_some() { "alert warn" } else { "alert bad" }) { (display_text(reason)) }
        }
    }
}

fn facts(bisection: &BisectionView, names: &NodeNames) -> Markup {
    let nodes = html! { @for node in &bisection.nodes { (names.link(*node)) " " } };
    let returning = bisection.returning.map(|id| {
        html! { a href=(format!("{PREFIX}/rollouts/{id}")) { "rollout " (id) } }
    });
    html::facts(&[
        ("Progress", plain(progress_words(bisection))),
        (
            "Profile",
            html! { a href=(format!("{PREFIX}/profiles/{}", bisection.profile)) { (bisection.profile) } },
        ),
        ("Check", plain(&bisection.check)),
        ("Boots", plain(bisection.probes.len())),
        ("Nodes", nodes),
        ("Nodes return by", returning.unwrap_or_default()),
        ("Started", time(bisection.started_at)),
        ("Finished", bisection.finished_at.map(time).unwrap_or_default()),
        ("By", plain(&bisection.by.principal)),
        ("Reason", maybe(bisection.by.reason.as_ref())),
    ])
}

fn verdict_badge(verdict: Option<ProbeVerdict>) -> Markup {
    let (class, word) = match verdict {
        None => ("busy", "boots"),
        Some(ProbeVerdict::Good) => ("good", "good"),
        Some(ProbeVerdict::Bad) => ("bad", "bad"),
        Some(verdict @ (ProbeVerdict::Mixed | ProbeVerdict::Untested)) => {
            ("warn", verdict.as_str())
        }
    };
    html::badge(class, word)
}

fn probe_row(probe: &ProbeView, names: &NodeNames) -> Vec<Markup> {
    vec![
        code(probe.generation.0.short()),
        verdict_badge(probe.verdict),
        names.link(probe.node),
        html! { a href=(format!("{PREFIX}/rollouts/{}", probe.rollout)) { (probe.rollout) } },
        maybe(probe.reason.as_ref()),
    ]
}

/// Positions of the newest good and of the oldest bad generation.
fn bounds(bisection: &BisectionView) -> (usize, usize) {
    let places =
        |verdict| {
            bisection.probes.iter().filter(move |probe| probe.verdict == Some(verdict)).filter_map(
                |probe| bisection.generations.iter().position(|it| *it == probe.generation),
            )
        };
    let last = bisection.generations.len().saturating_sub(1);
    (places(ProbeVerdict::Good).max().unwrap_or(0), places(ProbeVerdict::Bad).min().unwrap_or(last))
}

/// Renders the generations, the oldest first, with the range that is left.
fn generations(bisection: &BisectionView) -> Markup {
    let (good, bad) = bounds(bisection);
    let row = |(place, generation): (usize, &Generation)| {
        let boots = bisection.probes.iter().filter(|probe| probe.generation == *generation);
        let (class, word) = if bisection.first_bad == Some(*generation) {
            ("bad", "first bad")
        } else if place <= good {
            ("good", "good")
        } else if place > bad || place == bad && bisection.first_bad.is_some() {
            ("bad", "bad")
        } else if place == bad {
            ("bad", "bad, perhaps the first")
        } else {
            ("warn", "suspect")
        };
        let state = html::badge(class, word);
        vec![
            plain(place + 1),
            code(generation),
            state,
            html! { @for boot in boots { (verdict_badge(boot.verdict)) " " } },
        ]
    };
    // A long range is cut around the part that is left.
    let count = bisection.generations.len();
    let from = good.saturating_sub(MAX_GENERATIONS / 4).min(count.saturating_sub(MAX_GENERATIONS));
    let shown = bisection.generations.iter().enumerate().skip(from).take(MAX_GENERATIONS);
    let rows: Vec<_> = shown.map(row).collect();
    html! {
        (html::table(&["Number", "Generation", "State", "Boots"], &rows, "It has no generation."))
        @if rows.len() < count { p.quiet { (count - rows.len()) " more generations are not shown." } }
    }
}

/// Renders the form that ends a bisection.
fn abort_form(bisection: &BisectionView, names: &NodeNames) -> Markup {
    if bisection.state != BisectionState::Running {
        return Markup::default();
    }
    html! {
        details.menu {
            summary { "Abort…" }
            form.stack.panel method="post" action=(format!("{PREFIX}/bisections/{}/abort", bisection.id)) {
                p { "The search ends without a result. The booted nodes return to what they ran:" }
                ul { @for node in &bisection.nodes { li { (names.link(*node)) } } }
                (html::reason_input("reason-abort"))
                button.danger { "Abort" }
            }
        }
    }
}

pub(crate) async fn abort(
    client: ApiClient,
    Path(bisection): Path<String>,
    request: Request<Body>,
) -> Answer {
    let fields = fields(request).await?;
    let order = api::ABORT_BISECTION.path([&bisection]).with_body(&());
    let done = client.order_untyped(order, &actions::notes(&fields)).await;
    done.map_err(|error| client.failed(&error))?;
    Ok(redirect(&format!("{PREFIX}/bisections/{}", encoded(&bisection))))
}
