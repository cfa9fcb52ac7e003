//! Containers: the list, and the page of one container.
//!
//! | module | content |
//! | --- | --- |
//! | `log` | the log of a replica |
//! | `orders` | start, stop and delete, with confirmation |
//! | `replicas` | the replicas of containers |
//! | `spec` | what a container runs |

pub(in crate::screens) mod log;
pub(in crate::screens) mod orders;
pub(in crate::screens) mod replicas;
mod spec;

use super::ROWS;
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    form::Fields,
    html::{self, Page, plain, time},
    names::NodeNames,
    screens::{Answer, actions, log::event_table},
};
use axum::{
    extract::{Path, Query},
    http::HeaderMap,
};
use maud::{Markup, html};
use meshd_api::{
    ContainerView, EventView, VolumeView, container_options::port_words, routes as api,
};
use meshd_model::work::container::{ContainerGoal, ReplicaPhase};
use replicas::replica_table;
use std::collections::BTreeSet;

/// Parameters by which the API selects containers.
const FILTERS: [&str; 4] = ["q", "node", "state", "image"];
/// Maximum number of nodes in a row of the list.
const MAX_NODES: usize = 4;
/// Number of events on the page of a container.
const EVENTS: usize = 50;
/// Maximum number of pages of events that are searched for them.
const MAX_EVENT_PAGES: usize = 10;

/// Returns the path of the page of a container.
pub(in crate::screens) fn page_of(container: &ContainerView) -> String {
    format!("{PREFIX}/containers/{}", encoded(container.name.as_str()))
}

/// Renders how many replicas run, or that they are to end.
fn state(container: &ContainerView) -> Markup {
    let finished = container.replicas.iter().filter(|replica| container.has_finished(replica));
    let total = container.replicas.len() - finished.count();
    let has = |phase| container.replicas.iter().any(|replica| replica.phase == phase);
    let runs = match container.running {
        1 => format!("1 of {total} runs"),
        running => format!("{running} of {total} run"),
    };
    match container.desired_state {
        ContainerGoal::Release => html::badge("warn", "is being deleted"),
        ContainerGoal::Stop
            if container.replicas.iter().all(|it| it.phase == ReplicaPhase::Stopped) =>
        {
            html::badge("idle", "stopped")
        }
        ContainerGoal::Stop => html::badge("busy", "stops"),
        ContainerGoal::Run if total == 0 => html::badge("idle", "exited"),
        ContainerGoal::Run if container.running == total => html::badge("good", &runs),
        ContainerGoal::Run
            if [ReplicaPhase::Failed, ReplicaPhase::Unplaced, ReplicaPhase::Unhealthy]
                .into_iter()
                .any(has) =>
        {
            html::badge("bad", &runs)
        }
        ContainerGoal::Run => html::badge("warn", &runs),
    }
}

/// Renders the reason of the first replica with a problem.
fn problem(container: &ContainerView) -> Markup {
    let mut troubled = container.replicas.iter().filter(|replica| {
        use ReplicaPhase::{Exited, Fetching, Stopped};
        let is_expected = matches!(replica.phase, Exited | Fetching | Stopped);
        !is_expected && !replica.runs() && !replica.detail.is_empty()
    });
    let Some(first) = troubled.next() else { return Markup::default() };
    let more = troubled.count();
    html! {
        (first.id) ": " (html::display_text(&first.detail))
        @if more > 0 { " and " (more) " more" }
    }
}

fn nodes(container: &ContainerView, names: &NodeNames) -> Markup {
    let nodes: Vec<_> = container.replicas.iter().filter_map(|replica| replica.node).collect();
    let more = nodes.len().saturating_sub(MAX_NODES);
    html! {
        @for node in nodes.iter().take(MAX_NODES) { (names.link(*node)) " " }
        @if more > 0 { "and " (more) " more" }
    }
}

fn container_table(containers: &[ContainerView], names: &NodeNames) -> Markup {
    let row = |container: &ContainerView| {
        vec![
            html! { a href=(page_of(container)) { (container.name) } },
            state(container),
            plain(&container.image),
            plain(port_words(&container.ports)),
            nodes(container, names),
            plain(container.replicas.iter().map(|replica| replica.restarts).sum::<u32>()),
            problem(container),
            time(container.created_at),
        ]
    };
    let rows: Vec<_> = containers.iter().map(row).collect();
    let heads = ["Name", "State", "Image", "Ports", "Nodes", "Restarts", "Problem", "Created"];
    html::table(&heads, &rows, "There is no container.")
}

pub(crate) async fn page(
    client: ApiClient,
    Query(query): Query<Fields>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let path = api::LIST_CONTAINERS.path([]).with("sort", "name").with("limit", ROWS);
    let path = FILTERS.iter().fold(path, |path, name| path.with_nonempty(name, query.text(name)));
    let path = path.with_nonempty("after", query.text("after"));
    let containers = client.list(path).await.map_err(failed)?;
    let names = client.node_names().await.map_err(failed)?;
    let volumes = client.get(api::LIST_VOLUMES.path([])).await.map_err(failed)?;
    let total = containers.total.unwrap_or(containers.rows.len());
    let content = html! {
        h1 { "Containers" }
        @if actions::may_order(&client) {
            div.actions { a.button href=(format!("{PREFIX}/run-container")) { "Run container" } }
        }
        (filters(&query, &volumes))
        div id="rows" data-live {
            p.quiet { (total) @if total == 1 { " container" } @else { " containers" } }
            (container_table(&containers.rows, &names))
        }
        @if let Some(next) = &containers.next {
            p { a.button href=(next_page(&query, next)) { "Next page" } }
        }
    };
    Ok(Page { client: &client, title: "Containers".to_owned(), nav_path: "/containers", content }
        .answer(&headers))
}

fn filters(query: &Fields, volumes: &[VolumeView]) -> Markup {
    let images = volumes.iter().filter(|volume| volume.container_image);
    let mut images: BTreeSet<String> = images.map(|volume| volume.name.to_string()).collect();
    // The digest of a link, or an image that was removed.
    images.extend(Some(query.text("image").to_owned()).filter(|image| !image.is_empty()));
    html! {
        form.filters action=(format!("{PREFIX}/containers")) {
            label { "Text" input name="q" type="search" value=(query.text("q")) placeholder="name, image, argument"; }
            label { "Node" input name="node" value=(query.text("node")); }
            label { "State" select name="state" {
                option value="" { "any" }
                @for phase in ReplicaPhase::ALL { option value=(phase.as_str()) selected[query.text("state") == phase.as_str()] { (phase.as_str()) } }
            } }
            label { "Image" select name="image" {
                option value="" { "any" }
                @for image in &images { option value=(image) selected[query.text("image") == image] { (html::display_text(image)) } }
            } }
            button.main { "Show" }
            a href=(format!("{PREFIX}/containers")) { "Clear" }
        }
    }
}

fn next_page(query: &Fields, after: &str) -> String {
    let filters = FILTERS.iter().map(|name| (*name, query.text(name)));
    let filters = filters.filter(|(_, value)| !value.is_empty());
    let filters: String =
        filters.map(|(name, value)| format!("&{name}={}", encoded(value))).collect();
    format!("{PREFIX}/containers?after={}{filters}", encoded(after))
}

pub(crate) async fn one(
    client: ApiClient,
    Path(container): Path<String>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let container = client.get(api::GET_CONTAINER.path([&container])).await.map_err(failed)?;
    let names = client.node_names().await.map_err(failed)?;
    let events = events(&client, &container).await.map_err(failed)?;
    let replicas: Vec<_> = container.replicas.iter().collect();
    let content = html! {
        h1 { (container.name) " " span id="state" data-live { (state(&container)) } }
        section.card id="facts" data-live aria-label="Summary" { (html::facts(&spec::rows(&container))) }
        @if actions::may_order(&client) { (orders::buttons(&client, &container)) }
        h2 { "Replicas" }
        div id="replicas" data-live { (replica_table(&replicas, &names, client.caller.role)) }
        h2 { "Events" }
        div id="events" data-live { (event_table(&events, &names)) }
        p { a href=(format!("{PREFIX}/events?kind=container&q={}", encoded(&subject(&container)))) { "All events of containers with this name" } }
    };
    let title = container.name.to_string();
    Ok(Page { client: &client, title, nav_path: "/containers", content }.answer(&headers))
}

/// Returns the beginning of the details of its events.
fn subject(container: &ContainerView) -> String {
    format!("container {}", container.name)
}

/// Requests the newest events of a container and its replicas.
async fn events(client: &ApiClient, container: &ContainerView) -> Result<Vec<EventView>, ApiError> {
    let subject = subject(container);
    let mut events: Vec<EventView> = Vec::new();
    let mut after = String::new();
    for _ in 0..MAX_EVENT_PAGES {
        let path = api::LIST_EVENTS.path([]).with("kind", "container").with("q", &subject);
        let path = path.with("sort", "-seq").with("limit", ROWS).with_nonempty("after", &after);
        let page = client.lines(path).await?;
        // The text also finds names that begin with this one, or contain it.
        events.extend(page.rows.into_iter().filter(|event| is_about(&event.detail, &subject)));
        let Some(next) = page.next.filter(|_| events.len() < EVENTS) else { break };
        after = next;
    }
    events.truncate(EVENTS);
    Ok(events)
}

/// Returns true if the detail of an event is about a container or one of its replicas.
fn is_about(detail: &str, subject: &str) -> bool {
    let rest = detail.strip_prefix(subject).and_then(|rest| rest.split_once(':'));
    rest.is_some_and(|(index, _)| {
        let digits = index.strip_prefix('.').unwrap_or_default();
        index.is_empty() || !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_of_a_container_whose_name_begins_alike_is_not_shown() {
        for detail in
            ["container web: stop ordered", "container web.0: runs", "container web.63: x"]
        {
            assert!(is_about(detail, "container web"), "{detail}");
        }
        for detail in [
            "container web.prod: stop ordered",
            "container web.prod.0: runs",
            "container web2: runs",
            "container web.: x",
            "container web",
            "a container web: x",
        ] {
            assert!(!is_about(detail, "container web"), "{detail}");
        }
    }
}
