//! The card above the tabs: state, problems, what the node runs, and where it is.

use super::Tab;
use crate::{
    PREFIX,
    html::{self, code, display_text, duration, maybe, plain, time},
};
use maud::{Markup, html};
use meshd_api::{BootView, GenerationView, NodeDetail, WarmRebootView};
use meshd_model::fleet::{ConditionKind, NextBootOverride, Severity, label_words};
use meshd_proto::{Check, CheckStatus, Heartbeat};
use meshd_trust::Role;
use meshd_types::Timestamp;
use std::time::Duration;

/// Maximum number of failing checks above the tabs.
const MAX_CHECKS: usize = 5;

/// Returns the part of the page, or the events, that explain a condition.
fn about_condition(detail: &NodeDetail, condition: ConditionKind) -> String {
    match condition {
        ConditionKind::CheckFailed => Tab::Checks.path(detail),
        ConditionKind::BootStalled | ConditionKind::BootLoop => Tab::Boot.path(detail),
        ConditionKind::RebootRequired => format!("{}#generations", Tab::Boot.path(detail)),
        other => format!("{PREFIX}/events?node={}&kind={}", detail.node.id, other.as_str()),
    }
}

/// Returns the colour class of a condition. Some conditions harm nothing before the next boot.
fn class_of(condition: ConditionKind) -> &'static str {
    let needs_attention = Severity::of_condition(condition).needs_attention();
    if needs_attention { "alert bad" } else { "alert warn" }
}

/// Returns the failing checks of the current boot.
pub(super) fn failing_checks(detail: &NodeDetail) -> impl Iterator<Item = &Check> {
    let is_failing = |check: &&Check| check.status == CheckStatus::Fail && detail.checks_count;
    detail.checks.iter().filter(is_failing)
}

/// Renders problems and their hints. Each links to what it is about.
pub(super) fn problems(detail: &NodeDetail) -> Markup {
    let failing = failing_checks(detail).count();
    html! {
        @for condition in &detail.node.conditions {
            div class=(class_of(condition.kind)) {
                a href=(about_condition(detail, condition.kind)) { strong { (html::condition_with_name(condition.kind)) } }
                " since " (time(condition.since)) p { (display_text(&condition.detail)) }
            }
        }
        @for check in failing_checks(detail).take(MAX_CHECKS) {
            div.alert.bad { a href=(Tab::Checks.path(detail)) { "check" } " " strong { (display_text(&check.name)) ": " (display_text(&check.detail)) } p { (display_text(&check.remediation)) } }
        }
        @if failing > MAX_CHECKS {
            p { a href=(Tab::Checks.path(detail)) { (failing - MAX_CHECKS) " more failing checks" } }
        }
        @for machine in &detail.conflicting_machines {
            div.alert.bad { strong { "Another machine claims this identity: " (display_text(&machine.words())) } " last " (time(machine.last)) }
        }
        @if let Some(reason) = &detail.quarantine_reason { div.alert.warn { "Quarantined by an operator: " (display_text(reason)) } }
        @if let Some(reason) = &detail.deferred { div.alert.warn { "Its boot is deferred: " (display_text(reason)) } }
    }
}

/// Renders what the node runs, and where it is.
pub(super) fn facts(detail: &NodeDetail, history: &[GenerationView], role: Role) -> Markup {
    let node = &detail.node;
    let groups = detail.groups.iter().map(|group| group.as_str()).collect::<Vec<_>>().join(" ");
    let value = |value| serde_json::to_string(value).unwrap_or_default();
    let vars: Vec<_> =
        detail.vars.iter().map(|(name, own)| format!("{name}={}", value(own))).collect();
    let origin = if node.assigned { "assigned" } else { "the site's default" };
    let up_since = detail.heartbeat.as_ref().map(|beat| time(up_since(node.last_seen, beat)));
    let bmc = html! {
        @if role >= Role::Operator { a href=(format!("{PREFIX}/nodes/{}/bmc", node.id)) { "Power and sensors" } }
    };
    html::facts(&[
        (
            "State",
            html! { (html::phase(node.phase)) @if !detail.certificates.is_empty() && detail.link_since.is_none() { span.quiet { " no link" } } },
        ),
        (
            "Profile",
            html! { a href=(format!("{PREFIX}/profiles/{}", node.profile)) { (node.profile) } span.quiet { " " (origin) } },
        ),
        ("Runs", running(detail, history)),
        ("Next boot", next_boot(detail, history)),
        ("Model", plain(&node.model)),
        ("Serial number", code(&node.serial)),
        ("Address", maybe(node.address)),
        (
            "Boots from",
            html! { (code(node.mac)) @if let Some(segment) = &node.segment { span.quiet { " in " (display_text(segment)) } } },
        ),
        ("BMC", bmc),
        ("Last boot", node.boot.as_ref().map(last_boot).unwrap_or_default()),
        ("Warm reboot", detail.warm_reboot.as_ref().map(warm_reboot).unwrap_or_default()),
        ("Up since", up_since.unwrap_or_default()),
        ("Link since", detail.link_since.map(time).unwrap_or_default()),
        ("Last seen", html::last_seen(node.phase, node.last_seen)),
        ("Labels", plain(label_words(&node.labels))),
        ("Groups", plain(groups)),
        ("Variables", plain(vars.join(", "))),
        ("Work", plain(node.work.join(", "))),
    ])
}

/// Renders a generation with the image that it boots.
fn generation(view: &GenerationView) -> Markup {
    let delivered = &view.delivered;
    html! {
        (display_text(delivered.image.as_str())) "@" (delivered.version.short())
        span.quiet { " generation " } (code(delivered.generation.0.short()))
    }
}

fn running(detail: &NodeDetail, history: &[GenerationView]) -> Markup {
    match history.iter().find(|view| view.runs) {
        Some(view) => generation(view),
        None => code(detail.node.generation.map(|it| it.0.short()).unwrap_or_default()),
    }
}

/// Renders how the next boot differs from the running system; empty if it does not.
fn next_boot(detail: &NodeDetail, history: &[GenerationView]) -> Markup {
    let node = &detail.node;
    let differs = node.generation.is_some() && node.generation != node.next_generation;
    let next = history.iter().find(|view| view.next && !view.runs).filter(|_| differs);
    html! {
        @if let Some(next) = next { (generation(next)) " " }
        @else if let Some(next) = node.next_generation.filter(|_| differs) { span.quiet { "generation " } (code(next.0.short())) " " }
        @if node.pinned.is_some() { (html::badge("warn", "pinned")) " " }
        @if node.rolled_back.is_some() { (html::badge("warn", "profile rolled back")) " " }
        @if let Some(once) = detail.boot_override.as_ref().map(NextBootOverride::words) { "once: " (display_text(&once)) }
    }
}

fn last_boot(boot: &BootView) -> Markup {
    let took = boot.stage_at.map(|at| at.since(boot.opened_at).as_millis());
    let took = took.and_then(|millis| u64::try_from(millis).ok());
    html! {
        (time(boot.opened_at))
        @if let Some(stage) = boot.stage {
            span.quiet { ", reached " (stage.as_str()) @if let Some(took) = took { " after " (duration(took)) } }
        }
    }
}

/// Renders how the node carried out its last order to reboot without its firmware.
fn warm_reboot(reboot: &WarmRebootView) -> Markup {
    let operation = format!("{PREFIX}/operations/{}", reboot.operation);
    html! {
        @match &reboot.cold {
            None => { (html::badge("good", "warm")) " " a href=(operation) { (time(reboot.at)) } }
            Some(cold) => {
                (html::badge("warn", "booted cold")) " " a href=(operation) { (time(reboot.at)) }
                div.quiet { (display_text(&cold.reason)) " " (html::hint(&cold.remedy)) }
            }
        }
    }
}

/// Returns the start of the system to the minute. A page would not update a duration while the node
/// is silent.
fn up_since(last_seen: Timestamp, beat: &Heartbeat) -> Timestamp {
    html::minute_of(last_seen.before(Duration::from_secs(beat.uptime_s)))
}
