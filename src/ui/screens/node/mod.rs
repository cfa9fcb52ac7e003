//! The page of one node: a card with its state and its problems, a menu of orders, and tabs.
//!
//! | module | content |
//! | --- | --- |
//! | `bmc` | power and sensors, as the BMC reports them |
//! | `boot_times` | the steps of a boot beside the medians of other boots |
//! | `checks` | readiness checks |
//! | `generations` | generations, and the difference of the next one |
//! | `hardware` | hardware and identity |
//! | `log` | the log of one boot |
//! | `overlay_files` | the files of its overlay |
//! | `series` | plots of the last day |
//! | `summary` | the card above the tabs |
//! | `timeline` | the stages of a boot as bars |

pub(crate) mod bmc;
mod boot_times;
mod checks;
mod generations;
mod hardware;
pub(crate) mod log;
pub(crate) mod overlay_files;
mod series;
mod summary;
mod timeline;

use super::{Answer, actions, console::open_shell_form, work::containers::replicas::replica_table};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError},
    console::ConsoleTarget,
    form::Fields,
    html::{self, Page, display_text},
};
use axum::{
    extract::{Path, Query},
    http::{HeaderMap, StatusCode},
};
use maud::{Markup, html};
use meshd_api::{GenerationView, NodeDetail, routes as api};
use meshd_trust::Role;

/// Number of events on the page of a node.
const EVENTS: usize = 50;

/// A part of the page. Each has an address, and only the shown one is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tab {
    Boot,
    Checks,
    Hardware,
    Work,
    Events,
    Plots,
}

impl Tab {
    const ALL: [Tab; 6] =
        [Tab::Boot, Tab::Checks, Tab::Hardware, Tab::Work, Tab::Events, Tab::Plots];

    /// Value in the address of the page.
    fn word(self) -> &'static str {
        match self {
            Tab::Boot => "boot",
            Tab::Checks => "checks",
            Tab::Hardware => "hardware",
            Tab::Work => "work",
            Tab::Events => "events",
            Tab::Plots => "plots",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Tab::Boot => "Boot",
            Tab::Checks => "Checks",
            Tab::Hardware => "Hardware",
            Tab::Work => "Work",
            Tab::Events => "Events",
            Tab::Plots => "Plots",
        }
    }

    /// Returns the part that the address names; the boot by default.
    fn of(query: &Fields) -> Tab {
        let word = query.text("tab");
        Tab::ALL.into_iter().find(|tab| tab.word() == word).unwrap_or(Tab::Boot)
    }

    /// Returns the address of the part.
    fn path(self, detail: &NodeDetail) -> String {
        format!("{PREFIX}/nodes/{}?tab={}", detail.node.id, self.word())
    }
}

/// Converts status 404 and 409 to `None`: a node may have never booted.
fn absent_to_none<T>(result: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.status, StatusCode::NOT_FOUND | StatusCode::CONFLICT) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

pub(crate) async fn page(
    client: ApiClient,
    Path(node): Path<String>,
    Query(query): Query<Fields>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let detail = client.get(api::GET_NODE.path([&node])).await.map_err(failed)?;
    let view = &detail.node;
    let history = client.get(api::LIST_NODE_GENERATIONS.path([&view.id])).await.map_err(failed)?;
    let tab = Tab::of(&query);
    let shown = match tab {
        Tab::Boot => boot(&client, &detail, &history, query.text("session")).await,
        Tab::Checks => Ok(html! { div id="checks" data-live { (checks::table(&detail)) } }),
        Tab::Hardware => Ok(hardware::facts(&detail, actions::may_order(&client))),
        Tab::Work => work(&client, &detail).await,
        Tab::Events => events(&client, &detail).await,
        Tab::Plots => Ok(series::plots(series::last_day(&client, view.id).await.ok().as_deref())),
    };
    let shown = shown.map_err(failed)?;
    let done = query.text("done");
    let content = html! {
        h1 { (display_text(&view.name)) " " (html::id_in_brackets(&view.id.to_string())) " " span id="phase" data-live { (html::phase(view.phase)) } }
        @if !done.is_empty() { div.alert.good role="status" { "Done: " (display_text(done)) } }
        section id="conditions" data-live aria-label="Conditions" { (summary::problems(&detail)) }
        section.card id="facts" data-live aria-label="Summary" { (summary::facts(&detail, &history, client.caller.role)) }
        @if actions::may_order(&client) {
            section id="orders" data-live aria-label="Actions" { (actions::menu::menu(&detail, client.caller.role)) }
        }
        div.tabs role="navigation" aria-label="Parts of this node" id="tabs" data-live { @for other in Tab::ALL { (tab_link(other, tab, &detail)) } }
        section aria-label=(tab.title()) { (shown) }
    };
    Ok(Page { client: &client, title: view.name.clone(), nav_path: "/nodes", content }
        .answer(&headers))
}

/// Renders the link to a part, with the number of its problems or objects.
fn tab_link(tab: Tab, shown: Tab, detail: &NodeDetail) -> Markup {
    let count = match tab {
        Tab::Checks => summary::failing_checks(detail).count(),
        Tab::Work => detail.node.work.len(),
        _ => 0,
    };
    let class = if tab == Tab::Checks { "badge bad" } else { "badge" };
    html! {
        a href=(tab.path(detail)) aria-current=[(tab == shown).then_some("page")] {
            (tab.title()) @if count > 0 { " " span class=(class) { (count) } }
        }
    }
}

/// Renders the stages of a boot, where its time goes, and the generations.
async fn boot(
    client: &ApiClient,
    detail: &NodeDetail,
    history: &[GenerationView],
    session: &str,
) -> Result<Markup, ApiError> {
    let view = &detail.node;
    let timeline = api::GET_NODE_TIMELINE.path([&view.id]).with_nonempty("session", session);
    let timeline = absent_to_none(client.get(timeline).await)?;
    let times = api::GET_NODE_BOOT_TIMES.path([&view.id]).with_nonempty("session", session);
    let times = absent_to_none(client.get(times).await)?;
    let diff = if view.generation.is_some() && view.generation != view.next_generation {
        absent_to_none(client.get(api::COMPARE_NODE_GENERATIONS.path([&view.id])).await)?
    } else {
        None
    };
    let may_order = actions::may_order(client);
    Ok(html! {
        div id="boot" data-live {
            @match &timeline {
                Some(boot) => (timeline::bars(boot)),
                None => p.quiet { "No boot is on record. Power the machine on: it boots from the network." },
            }
            @if let Some(times) = &times { (boot_times::plot(times)) }
        }
        @if may_order { p { a href=(format!("{PREFIX}/nodes/{}/log", view.id)) { "Kernel and system log" } } }
        @if client.caller.role >= Role::Admin { (open_shell_form(&ConsoleTarget::Node(view.id.to_string()))) }
        section id="generations" { h2 { "Generations" } (generations::table(history, diff.as_ref()))
            @if may_order { p { a href=(format!("{PREFIX}/nodes/{}/overlay", view.id)) { "Files of its next overlay" } } }
        }
    })
}

/// Renders VMs, replicas of containers, tasks and slots.
async fn work(client: &ApiClient, detail: &NodeDetail) -> Result<Markup, ApiError> {
    let id = detail.node.id;
    let vms = client.list(api::LIST_VMS.path([]).with("node", id).with("limit", 100)).await?.rows;
    let tasks = api::LIST_TASKS.path([]).with("node", id).with("sort", "-created_at");
    let tasks = client.list(tasks.with("limit", 10)).await?.rows;
    let containers = client.get(api::LIST_CONTAINERS.path([]).with("node", id)).await?;
    let replicas = containers.iter().flat_map(|container| &container.replicas);
    let replicas: Vec<_> = replicas.filter(|replica| replica.node == Some(id)).collect();
    let mut slots = client.get(api::LIST_SLOTS.path([])).await?;
    slots.retain(|slot| slot.id.node == id);
    let names = client.node_names().await?;
    Ok(html! {
        div id="work" data-live {
            @if vms.is_empty() && replicas.is_empty() && tasks.is_empty() && slots.is_empty() {
                p.quiet {
                    "Nothing. " a href=(format!("{PREFIX}/vms/new")) { "Create a VM" } ", "
                    a href=(format!("{PREFIX}/run-container")) { "run a container" } " or "
                    a href=(format!("{PREFIX}/tasks/new")) { "run a task" } "."
                }
            }
            @if !vms.is_empty() { h2 { "VMs" } (super::work::vms::vm_table(&vms, &names)) }
            @if !replicas.is_empty() { h2 { "Containers" } (replica_table(&replicas, &names, client.caller.role)) }
            @if !tasks.is_empty() { h2 { "Tasks" } (super::work::tasks::task_table(&tasks)) }
            @if !slots.is_empty() { h2 { "Slots" } (super::work::slots::slot_table(&slots, &names, actions::may_order(client))) }
        }
    })
}

/// Renders the newest events.
async fn events(client: &ApiClient, detail: &NodeDetail) -> Result<Markup, ApiError> {
    let id = detail.node.id;
    let newest = api::LIST_EVENTS.path([]).with("node", id).with("sort", "-seq");
    let events = client.lines(newest.with("limit", EVENTS)).await?.rows;
    let names = client.node_names().await?;
    Ok(html! {
        div id="events" data-live { (super::log::event_table(&events, &names)) }
        p { a href=(format!("{PREFIX}/events?node={id}")) { "All events of this node" } }
    })
}
