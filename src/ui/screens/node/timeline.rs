//! The stages of a boot as bars.

use crate::html::{self, display_text, duration};
use maud::{Markup, html};
use meshd_api::{StageView, TimelineView};
use meshd_model::fleet::{BootStatus, Wait};

/// Width of the drawing, in SVG units.
const WIDTH: u64 = 1000;
/// Minimum width of a visible bar, in SVG units.
const MIN_WIDTH: u64 = 4;

/// Returns the colour class of a boot.
fn class(status: BootStatus) -> &'static str {
    match status {
        BootStatus::Online => "good",
        BootStatus::Booting => "busy",
        BootStatus::Waiting => "warn",
        BootStatus::Stalled | BootStatus::Stopped | BootStatus::Failed => "bad",
        BootStatus::Rebooted => "idle",
    }
}

pub(super) fn bars(boot: &TimelineView) -> Markup {
    html! {
        p {
            (html::badge(class(boot.result), boot.result.as_str()))
            " began " (html::time(boot.opened_at)) ", " (duration(boot.total_ms)) @if boot.result.is_unfinished() { " so far" } ", NIC " code { (boot.mac) }
        }
        @if let Some((summary, reason)) = boot.last_failure() {
            div.alert.bad {
                strong { @if summary.session == boot.session { "This boot failed" } @else { "The boot before failed" } }
                p { (display_text(reason)) }
            }
        }
        @for stall in &boot.stalls {
            @if stall.ended.is_none() {
                div.alert.bad { strong { "Stalled after " (stall.after.as_str()) ", waits for " (stall.missing.as_str()) } p { (display_text(&stall.cause)) } }
            }
        }
        @for wait in boot.waits.iter().filter(|wait| wait.code != Wait::APPROVAL) {
            p.quiet { "Boot deferred (" (display_text(&wait.code)) ") from " (html::time(wait.at)) " to " (html::time(boot.wait_end(wait))) ": " (display_text(wait.detail.as_deref().unwrap_or(&wait.reason()))) }
        }
        div.scroll tabindex="0" role="group" aria-label="Stages of this boot" {
            table.stages {
                thead { tr { th scope="col" { "Stage" } th scope="col" { "Took" } th scope="col" { "Total" } th.wide scope="col" { "Share of the boot" } } }
                tbody { @for (index, stage) in boot.stages.iter().enumerate() {
                    // The system started before the wait for approval, which ends with the
                    // certificate.
                    @let before = index.checked_sub(1).and_then(|index| boot.stages.get(index));
                    @let wait = before.filter(|before| before.stage == TimelineView::APPROVAL).map_or(0, |wait| wait.duration_ms);
                    (bar(stage, wait, boot.total_ms))
                } }
            }
        }
        @if boot.boots.len() > 1 {
            h2 { "Boots" }
            (boots(boot))
        }
    }
}

/// Renders a stage. `wait` is the time between its work and its end.
fn bar(stage: &StageView, wait: u64, total: u64) -> Markup {
    let scaled = |millis: u64| (millis * WIDTH).checked_div(total).unwrap_or(0).min(WIDTH);
    let width = scaled(stage.duration_ms).max(MIN_WIDTH);
    let start =
        scaled(stage.elapsed_ms.saturating_sub(stage.duration_ms + wait)).min(WIDTH - width);
    html! {
        tr {
            th scope="row" { (display_text(&stage.stage)) @if stage.count > 1 { span.quiet { " ×" (stage.count) } } }
            td { (duration(stage.duration_ms)) }
            td { (duration(stage.elapsed_ms)) }
            td {
                svg viewBox=(format!("0 0 {WIDTH} 16")) preserveAspectRatio="none" aria-hidden="true" {
                    rect x=(start) y="2" width=(width) height="12" rx="2" {}
                }
            }
        }
    }
}

fn boots(boot: &TimelineView) -> Markup {
    let rows: Vec<_> = boot
        .boots
        .iter()
        .map(|summary| {
            let when = html! {
                a href=(format!("?session={}", summary.session)) { (html::time(summary.opened_at)) }
                @if summary.session == boot.session { span.quiet { " (shown)" } }
            };
            let result = html! {
                (html::badge(class(summary.result), summary.result.as_str()))
                @if let Some(reason) = &summary.failure { " " (display_text(reason)) }
            };
            let stage = html::maybe(summary.stage.map(meshd_model::fleet::Stage::as_str));
            vec![when, result, stage, html::plain(duration(summary.total_ms))]
        })
        .collect();
    html::table(&["Began", "Result", "Last stage", "Took"], &rows, "")
}
