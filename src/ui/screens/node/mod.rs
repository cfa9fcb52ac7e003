//! The page of one node. Problems come first.
//!
//! | module | content |
//! | --- | --- |
//! | `boot_times` | the steps of a boot beside the medians of other boots |
//! | `log` | the log of one boot |
//! | `overlay_files` | the files of its overlay |
//! | `series` | plots of the last day |
//! | `timeline` | the stages of a boot as bars |

mod boot_times;
pub(crate) mod log;
pub(crate) mod overlay_files;
mod series;
mod timeline;

use super::{Answer, actions, console::open_shell_form};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError},
    console::ConsoleTarget,
    form::Fields,
    html::{self, Page, code, display_text, maybe, plain, time},
    names::NodeNames,
};
use axum::{
    extract::{Path, Query},
    http::{HeaderMap, StatusCode},
};
use maud::{Markup, html};
use meshd_api::{
    BootTimesView, DiffView, EventView, GenerationView, NodeDetail, SeriesPointsView, SlotView,
    TaskView, TimelineView, VmView, routes as api,
};
use meshd_model::fleet::label_words;
use meshd_proto::{Check, CheckStatus, Heartbeat};
use meshd_trust::Role;
use meshd_types::{NodeId, Timestamp};
use std::time::Duration;

/// Number of events on the page of a node.
const EVENTS: usize = 20;

/// Data on the page in addition to the node itself.
struct Related {
    boot: Option<TimelineView>,
    times: Option<BootTimesView>,
    history: Vec<GenerationView>,
    diff: Option<DiffView>,
    events: Vec<EventView>,
    vms: Vec<VmView>,
    tasks: Vec<TaskView>,
    slots: Vec<SlotView>,
    /// `None` if they cannot be read.
    series: Option<Vec<SeriesPointsView>>,
    names: NodeNames,
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

async fn load_related(
    client: &ApiClient,
    detail: &NodeDetail,
    session: &str,
) -> Result<Related, ApiError> {
    let id = detail.node.id;
    let differs =
        detail.node.generation.is_some() && detail.node.generation != detail.node.next_generation;
    let slots = client.get(api::LIST_SLOTS.path([])).await?;
    let prefix = format!("{id}/");
    let (events, tasks) = (api::LIST_EVENTS.path([]), api::LIST_TASKS.path([]));
    Ok(Related {
        boot: absent_to_none(
            client.get(api::GET_NODE_TIMELINE.path([&id]).with_nonempty("session", session)).await,
        )?,
        times: absent_to_none(
            client
                .get(api::GET_NODE_BOOT_TIMES.path([&id]).with_nonempty("session", session))
                .await,
        )?,
        history: client.get(api::LIST_NODE_GENERATIONS.path([&id])).await?,
        diff: if differs {
            absent_to_none(client.get(api::COMPARE_NODE_GENERATIONS.path([&id])).await)?
        } else {
            None
        },
        events: client
            .lines(events.with("node", id).with("sort", "-seq").with("limit", EVENTS))
            .await?
            .rows,
        vms: client.list(api::LIST_VMS.path([]).with("node", id).with("limit", 100)).await?.rows,
        tasks: client
            .list(tasks.with("node", id).with("sort", "-created_at").with("limit", 10))
            .await?
            .rows,
        series: series::last_day(client, id).await.ok(),
        slots: slots.into_iter().filter(|slot| slot.id.to_string().starts_with(&prefix)).collect(),
        names: client.node_names().await?,
    })
}

pub(crate) async fn page(
    client: ApiClient,
    Path(node): Path<String>,
    Query(query): Query<Fields>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let detail = client.get(api::GET_NODE.path([&node])).await.map_err(failed)?;
    let related = load_related(&client, &detail, query.text("session")).await.map_err(failed)?;
    let view = &detail.node;
    let content = html! {
        h1 { (display_text(&view.name)) " " (html::id_in_brackets(&view.id.to_string())) " " span id="phase" data-live { (html::phase(view.phase)) } }
        @if !query.text("done").is_empty() { div.alert.good role="status" { "Done: " (display_text(query.text("done"))) } }
        section id="conditions" data-live aria-label="Conditions" { (conditions(&detail)) }
        @if actions::may_order(&client) { section aria-label="Actions" { (actions::one_node::forms(&detail, client.caller.role)) } }
        section { h2 { "Boot" } div id="boot" data-live {
            @match &related.boot { Some(boot) => (timeline::bars(boot)), None => p.quiet { "No boot is on record. Power the machine on." } }
            @if let Some(times) = &related.times { (boot_times::plot(times)) }
        }
            @if actions::may_order(&client) { p { a href=(format!("{PREFIX}/nodes/{}/log", view.id)) { "Kernel and system log" } } }
            @if client.caller.role >= Role::Admin { (open_shell_form(&ConsoleTarget::Node(view.id.to_string()).page())) }
        }
        section { h2 { "Node" } div id="facts" data-live { (summary(&detail)) } }
        (series::plots(related.series.as_deref()))
        section { h2 { "Readiness checks" } div id="checks" data-live { (checks(&detail)) } }
        section id="generations" { h2 { "Generations" } (generations(&related))
            @if actions::may_order(&client) { p { a href=(format!("{PREFIX}/nodes/{}/overlay", view.id)) { "Files of its next overlay" } } }
        }
        section { h2 { "Work" } div id="work" data-live { (work(&related, actions::may_order(&client))) } }
        section { h2 { "Hardware" } (hardware(&detail)) }
        section { h2 { "Events" } div id="events" data-live { (super::log::event_table(&related.events, &related.names)) }
            p { a href=(format!("{PREFIX}/events?node={}", view.id)) { "All events of this node" } }
        }
    };
    Ok(Page { client: &client, title: view.name.clone(), nav_path: "/nodes", content }
        .answer(&headers))
}

/// Returns the part of the page, or the events, that explain a condition.
fn about_condition(node: NodeId, condition: &str) -> String {
    match condition {
        "check_failed" => "#checks".to_owned(),
        "boot_stalled" | "boot_loop" => "#boot".to_owned(),
        "reboot_required" => "#generations".to_owned(),
        other => format!("{PREFIX}/events?node={node}&kind={other}"),
    }
}

/// Renders problems and their hints. Each links to what it is about.
fn conditions(detail: &NodeDetail) -> Markup {
    let failing = detail
        .checks
        .iter()
        .filter(|check| check.status == CheckStatus::Fail && detail.checks_count);
    html! {
        @for condition in &detail.node.conditions {
            div.alert.bad {
                a href=(about_condition(detail.node.id, condition.kind.as_str())) { strong { (condition.kind.as_str()) } }
                " since " (time(condition.since)) p { (display_text(&condition.detail)) }
            }
        }
        @for check in failing {
            div.alert.bad { a href="#checks" { "check" } " " strong { (display_text(&check.name)) ": " (display_text(&check.detail)) } p { (display_text(&check.remediation)) } }
        }
        @for machine in &detail.conflicting_machines {
            div.alert.bad { strong { "Another machine claims this identity: " (display_text(&machine.words())) } " last " (time(machine.last)) }
        }
        @if let Some(reason) = &detail.quarantine_reason { div.alert.warn { "Quarantined by an operator: " (display_text(reason)) } }
    }
}

fn summary(detail: &NodeDetail) -> Markup {
    let node = &detail.node;
    let groups = detail.groups.iter().map(|group| group.as_str()).collect::<Vec<_>>().join(" ");
    let value = |value| serde_json::to_string(value).unwrap_or_default();
    let vars: Vec<_> =
        detail.vars.iter().map(|(name, own)| format!("{name}={}", value(own))).collect();
    let origin = if node.assigned { "assigned" } else { "the site's default" };
    html::facts(&[
        ("ID", code(node.id)),
        ("Basis of the ID", code(&detail.basis)),
        (
            "Profile",
            html! { a href=(format!("{PREFIX}/profiles/{}", node.profile)) { (node.profile) } span.quiet { " " (origin) } },
        ),
        ("Address", maybe(node.address)),
        ("Boots from", code(node.mac)),
        ("Labels", plain(label_words(&node.labels))),
        ("Variables", plain(vars.join(", "))),
        ("Groups", plain(groups)),
        ("Work", plain(node.work.join(", "))),
        (
            "Boot once",
            maybe(detail.boot_override.as_ref().map(meshd_model::fleet::NextBootOverride::words)),
        ),
        ("Boot deferred", maybe(detail.deferred.as_ref())),
        ("Link since", detail.link_since.map(time).unwrap_or_default()),
        ("Last seen", time(node.last_seen)),
        ("Discovered", time(detail.discovered_at)),
        (
            "Memory available",
            maybe(
                detail
                    .heartbeat
                    .as_ref()
                    .map(|beat| format!("{} MiB", beat.memory_available_kib >> 10)),
            ),
        ),
        (
            "Up since",
            detail
                .heartbeat
                .as_ref()
                .map(|beat| time(up_since(node.last_seen, beat)))
                .unwrap_or_default(),
        ),
    ])
}

/// Returns the start of the system to the minute. A duration would stand still while the node is
/// silent.
fn up_since(last_seen: Timestamp, beat: &Heartbeat) -> Timestamp {
    let started = last_seen.before(Duration::from_secs(beat.uptime_s)).millis();
    Timestamp::from_millis(started - started.rem_euclid(60_000))
}

fn check_badge(check: &Check) -> Markup {
    let class = match check.status {
        CheckStatus::Pass => "good",
        CheckStatus::Warn => "warn",
        CheckStatus::Fail => "bad",
        _ => "idle",
    };
    html::badge(class, &check.status.to_string())
}

fn checks(detail: &NodeDetail) -> Markup {
    let row = |check: &Check| {
        vec![
            plain(&check.name),
            check_badge(check),
            plain(&check.detail),
            plain(&check.remediation),
        ]
    };
    let rows: Vec<_> = detail.checks.iter().map(row).collect();
    html! {
        @if !detail.checks_count && !rows.is_empty() { p.quiet { "From an earlier boot; no longer valid." } }
        (html::table(&["Check", "Status", "Found", "Remedy"], &rows, "No checks have run."))
    }
}

fn generations(related: &Related) -> Markup {
    let marks = |view: &GenerationView| {
        html! {
            @if view.runs { (html::badge("good", "runs")) " " }
            @if view.next { (html::badge("busy", "next")) " " }
            @if view.pinned { (html::badge("warn", "pinned")) }
        }
    };
    let row = |view: &GenerationView| {
        let delivered = &view.delivered;
        vec![
            code(delivered.generation.0.short()),
            marks(view),
            plain(&delivered.profile),
            plain(&delivered.image),
            code(delivered.version.short()),
            time(delivered.delivered_at),
        ]
    };
    let rows: Vec<_> = related.history.iter().map(row).collect();
    html! {
        @if let Some(diff) = &related.diff {
            div.alert.warn { strong { "Its next boot changes its generation." } (difference(diff)) }
        }
        (html::table(&["Generation", "State", "Profile", "Image", "Version", "Given"], &rows, "No generation was delivered."))
    }
}

fn difference(view: &DiffView) -> Markup {
    let diff = &view.diff;
    let lists = [
        ("kernel arguments", &diff.args_removed, &diff.args_added),
        ("packages", &diff.packages_removed, &diff.packages_added),
    ];
    html! {
        ul {
            @for (what, [before, after]) in &diff.changed { li { (what) ": " del { (display_text(before)) } " " ins { (display_text(after)) } } }
            @for (what, removed, added) in lists {
                @if !removed.is_empty() || !added.is_empty() {
                    li { (what) ": " @for word in removed { del { (display_text(word)) } " " } @for word in added { ins { (display_text(word)) } " " } }
                }
            }
            @for file in &diff.files { li { code { (file.path) } " " (display_text(&file.attributes.join(", "))) " from " (display_text(&file.origin)) } }
        }
    }
}

fn work(related: &Related, may_order: bool) -> Markup {
    html! {
        @if related.vms.is_empty() && related.tasks.is_empty() && related.slots.is_empty() { p.quiet { "Nothing." } }
        @if !related.vms.is_empty() { h3 { "VMs" } (super::work::vms::vm_table(&related.vms, &related.names)) }
        @if !related.tasks.is_empty() { h3 { "Tasks" } (super::work::tasks::task_table(&related.tasks)) }
        @if !related.slots.is_empty() { h3 { "Slots" } (super::work::slots::slot_table(&related.slots, &related.names, may_order)) }
    }
}

fn hardware(detail: &NodeDetail) -> Markup {
    let print = &detail.fingerprint;
    let facts = detail.facts.as_ref();
    html::facts(&[
        ("Manufacturer", plain(&print.manufacturer)),
        ("Product", plain(&print.product)),
        ("Serial number", code(&print.serial)),
        ("Board serial", code(&print.board_serial)),
        ("UUID", print.uuid.map(code).unwrap_or_default()),
        (
            "Circuit ID of its switch port",
            detail.node.circuit_id.as_ref().map(code).unwrap_or_default(),
        ),
        (
            "Remote ID of its switch port",
            detail.node.remote_id.as_ref().map(code).unwrap_or_default(),
        ),
        (
            "MAC addresses",
            plain(print.macs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
        ),
        (
            "Processor",
            maybe(facts.map(|facts| format!("{}, {} threads", facts.cpu.model, facts.cpu.threads))),
        ),
        ("Memory", maybe(facts.map(|facts| format!("{} MiB", facts.memory.total_kib >> 10)))),
        ("PCI devices", maybe(facts.map(|facts| facts.pci.len()))),
        ("Disks", maybe(facts.map(|facts| facts.disks.len()))),
        ("Kernel", maybe(facts.map(|facts| &facts.versions.kernel))),
        ("System", maybe(facts.map(|facts| &facts.versions.os))),
        ("Agent", maybe(facts.map(|facts| &facts.versions.agent))),
    ])
}
