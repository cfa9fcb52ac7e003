//! The readiness checks of a node.

use crate::html::{self, plain};
use maud::{Markup, html};
use meshd_api::NodeDetail;
use meshd_proto::{Check, CheckStatus};

fn check_badge(check: &Check) -> Markup {
    let class = match check.status {
        CheckStatus::Pass => "good",
        CheckStatus::Warn => "warn",
        CheckStatus::Fail => "bad",
        _ => "idle",
    };
    html::badge(class, &check.status.to_string())
}

pub(super) fn table(detail: &NodeDetail) -> Markup {
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
