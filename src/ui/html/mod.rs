//! Layout of a page, and its parts: tables, badges, times.
//!
//! | module | content |
//! | --- | --- |
//! | `live` | the parts of a page that its script keeps up to date |
//! | `series_plot` | plots of time series |
//! | `shell` | frame of every page: header, navigation, keys |

mod live;
pub(crate) mod series_plot;
mod shell;

pub(crate) use shell::load_nav_counts;

use live::LiveParts;
use shell::SignedIn;

use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    plain_text::is_shown,
};
use axum::{
    body::Body,
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH},
    },
    response::{IntoResponse as _, Response},
};
use maud::{Markup, html};
use meshd_api::{Finding, Status};
use meshd_model::fleet::{ConditionKind, Phase};
use meshd_types::Timestamp;

/// Maximum number of characters of a text from a node or a guest. The rest is cut off.
const MAX_SHOWN: usize = 4000;

/// A page for a signed-in user.
pub(crate) struct Page<'c> {
    pub(crate) client: &'c ApiClient,
    pub(crate) title: String,
    /// Path of the navigation entry to highlight.
    pub(crate) nav_path: &'static str,
    pub(crate) content: Markup,
}

impl Page<'_> {
    /// Returns the page. The script sends the entity tag of what it shows, and gets 304 or the
    /// live parts that changed: a browser sends none, because pages are not stored.
    pub(crate) fn answer(self, request: &HeaderMap) -> Response {
        let nav = shell::navigation(&self.client.nav_counts, self.nav_path);
        let live = LiveParts::of(&[&nav.0, &self.content.0]);
        let tag = live.tag();
        let known = request.get(IF_NONE_MATCH).and_then(|known| known.to_str().ok());
        let mut response = match known {
            Some(known) if known == tag => StatusCode::NOT_MODIFIED.into_response(),
            Some(known) => document(StatusCode::OK, live.changes_since(known)),
            None => {
                let signed_in = SignedIn { caller: &self.client.caller, nav: &nav, tag: &tag };
                let page = shell::frame(&self.title, Some(signed_in), &self.content);
                document(StatusCode::OK, page.into_string())
            }
        };
        if let Ok(tag) = HeaderValue::try_from(tag) {
            response.headers_mut().insert(ETAG, tag);
        }
        response
    }
}

fn document(status: StatusCode, text: String) -> Response {
    (status, [(CONTENT_TYPE, "text/html; charset=utf-8")], Body::from(text)).into_response()
}

/// Returns a page for a user who is not signed in.
pub(crate) fn bare(status: StatusCode, title: &str, content: &Markup) -> Response {
    document(status, shell::frame(title, None, content).into_string())
}

/// Returns a page that explains a failure.
pub(crate) fn failure(client: Option<&ApiClient>, error: &ApiError) -> Response {
    let content = html! { h1 { "Not done" } (refusal(error)) p { a href=(format!("{PREFIX}/")) { "Overview" } } };
    let nav = client.map(|client| shell::navigation(&client.nav_counts, ""));
    let signed_in = client.zip(nav.as_ref());
    let signed_in =
        signed_in.map(|(client, nav)| SignedIn { caller: &client.caller, nav, tag: "" });
    document(error.status, shell::frame("Not done", signed_in, &content).into_string())
}

/// Renders an error with its hint.
pub(crate) fn refusal(error: &ApiError) -> Markup {
    let view = &error.view;
    html! {
        div.alert.bad role="alert" {
            strong { (display_text(&view.message)) }
            @if !view.hint.is_empty() { p { (hint(&view.hint)) } }
            @if !view.correlation_id.is_empty() { p.quiet { "In the log of meshd: " code { (view.correlation_id) } } }
        }
    }
}

/// Renders a hint. If it names a command, it says so and links to the page of the command's noun.
pub(crate) fn hint(text: &str) -> Markup {
    let noun = text.split_once("`meshd ").and_then(|(_, command)| command.split([' ', '`']).next());
    let page = noun.and_then(shell::page_of_noun);
    html! {
        @if noun.is_some() { "In a terminal: " } (display_text(text))
        @if let Some(page) = page { ". Page: " a href=(format!("{PREFIX}{}", page.path)) { (page.title) } }
    }
}

/// Returns a text of a node, a guest or a file, cut to a length that a page can show.
pub(crate) fn display_text(text: &str) -> String {
    let mut shown: String =
        text.chars().take(MAX_SHOWN).filter(|c| is_shown(*c) || *c == '\n').collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// Renders a time. The script shows how long ago it was, and the time in its title.
pub(crate) fn time(at: Timestamp) -> Markup {
    let text = at.to_string();
    html! { time datetime=(text) { (text) } }
}

/// Renders when a node was last heard. The time of a node that meshd hears all the time would
/// change its page with each heartbeat: a node that falls silent becomes offline instead.
pub(crate) fn last_seen(phase: Phase, at: Timestamp) -> Markup {
    match phase {
        Phase::Online | Phase::Degraded | Phase::Enrolling | Phase::Draining => {
            html! { span title="A node that falls silent becomes offline" { "now" } }
        }
        phase if phase.has_link() => time(minute_of(at)),
        _ => time(at),
    }
}

/// Returns the beginning of the minute of a time.
pub(crate) fn minute_of(at: Timestamp) -> Timestamp {
    Timestamp::from_millis(at.millis() - at.millis().rem_euclid(60_000))
}

/// Formats milliseconds for display.
pub(crate) fn duration(millis: u64) -> String {
    match millis {
        0..=999 => format!("{millis} ms"),
        1_000..=59_999 => format!("{}.{} s", millis / 1000, millis % 1000 / 100),
        _ => format!("{} min {} s", millis / 60_000, millis % 60_000 / 1000),
    }
}

/// Formats a number of bytes for display: `12.3 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.into_iter().find(|(size, _)| bytes >= *size) {
        Some((size, unit)) => format!("{}.{} {unit}", bytes / size, bytes % size * 10 / size),
        None => format!("{bytes} B"),
    }
}

/// Returns the colour class of a phase: healthy, in progress, needs attention, or out of service.
pub(crate) fn phase_class(phase: Phase) -> &'static str {
    match phase {
        Phase::Online => "good",
        Phase::Approved | Phase::Booting | Phase::Enrolling | Phase::Rebuilding => "busy",
        Phase::Degraded | Phase::Discovered | Phase::Draining => "warn",
        Phase::Quarantined | Phase::Offline => "bad",
        Phase::Rejected | Phase::Maintenance | Phase::Removed => "idle",
    }
}

pub(crate) fn badge(class: &str, text: &str) -> Markup {
    html! { span class=(format!("badge {class}")) { (text) } }
}

/// Renders a condition in plain words. Its title is the name that filters and the command line
/// take.
pub(crate) fn condition(kind: ConditionKind) -> Markup {
    html! { span title=(kind.as_str()) { (kind.words()) } }
}

pub(crate) fn condition_badge(kind: ConditionKind) -> Markup {
    html! { span.badge.warn title=(kind.as_str()) { (kind.words()) } }
}

/// Renders a condition in plain words, with its name in brackets.
pub(crate) fn condition_with_name(kind: ConditionKind) -> Markup {
    html! { (kind.words()) " (" (kind.as_str()) ")" }
}

pub(crate) fn phase(phase: Phase) -> Markup {
    badge(phase_class(phase), &phase.to_string())
}

/// Returns the page about the subject of a finding: path below `/ui`, title. `None` if only the
/// terminal shows more.
fn finding_page(check: &str) -> Option<(&'static str, &'static str)> {
    let subject = ["interface ", "segment ", "pool ", "other servers "]
        .iter()
        .find(|start| check.starts_with(**start));
    Some(match check {
        "approval" | "unknown machines" => ("/inbox", "Inbox"),
        "stalled boots" | "boot loops" => ("/operations#failed", "Failed boots"),
        "degraded" => ("/nodes?phase=degraded", "Degraded nodes"),
        "quarantine" => ("/nodes?phase=quarantined", "Quarantined nodes"),
        "offline" => ("/nodes?phase=offline", "Offline nodes"),
        "reload" => ("/events?kind=reload_refused", "Refused reloads"),
        _ if subject.is_some() => ("/dhcp", "DHCP"),
        _ => return None,
    })
}

/// Renders findings with their hints. A problem links to the page about its subject.
pub(crate) fn findings(findings: &[Finding]) -> Markup {
    html! {
        @for finding in findings {
            @let class = match finding.status { Status::Ok => "good", Status::Warn => "warn", Status::Fail => "bad" };
            @let page = finding_page(&finding.check).filter(|_| finding.status != Status::Ok);
            div class=(format!("alert {class}")) {
                strong { (finding.check) ": " (display_text(&finding.found)) }
                @if !finding.next.is_empty() { p { (display_text(&finding.next)) } }
                @if let Some((path, title)) = page { p { a href=(format!("{PREFIX}{path}")) { (title) } } }
            }
        }
    }
}

/// Renders findings in one line each. Doctor has their hints.
pub(crate) fn brief_findings(findings: &[Finding]) -> Markup {
    html! {
        @if !findings.is_empty() {
            ul.notes { @for finding in findings {
                @let (path, title) = finding_page(&finding.check).unwrap_or(("/doctor", "Doctor"));
                li { strong { (finding.check) } ": " (display_text(&finding.found)) " " a href=(format!("{PREFIX}{path}")) { (title) } }
            } }
        }
    }
}

/// Renders a link to the page of a node, with its ID in brackets.
pub(crate) fn node_link(id: &str, name: &str) -> Markup {
    html! { (name_link(id, name)) " " (id_in_brackets(id)) }
}

/// Renders the ID of an object after its name.
pub(crate) fn id_in_brackets(id: &str) -> Markup {
    html! { span.quiet { "(" code { (display_text(id)) } ")" } }
}

/// Renders a link to the page of a node, for a row that has the ID in another column.
pub(crate) fn name_link(id: &str, name: &str) -> Markup {
    html! { a href=(format!("{PREFIX}/nodes/{}", encoded(id))) { (display_text(name)) } }
}

/// Columns with texts of any length. Their cells break within words; those of other columns keep
/// times, names and IDs on one line.
const TEXT_COLUMNS: [&str; 12] = [
    "Detail",
    "Ended by",
    "Found",
    "Mismatch",
    "Problem",
    "Program",
    "Progress",
    "Purpose",
    "Reason",
    "Remedy",
    "Requested",
    "Value",
];

/// Columns with lists of names. Their cells break between names.
const LIST_COLUMNS: [&str; 9] = [
    "Choices",
    "Conditions",
    "Nodes",
    "Overlays",
    "Packages",
    "Ports",
    "Profiles",
    "Services",
    "Variables",
];

/// Returns the style class of the cells of a column.
fn cell_class(head: &str) -> Option<&'static str> {
    let class = |columns: &[&str], class| columns.contains(&head).then_some(class);
    class(&TEXT_COLUMNS, "text").or(class(&LIST_COLUMNS, "list"))
}

/// Renders a table that scrolls by itself on a narrow screen.
pub(crate) fn table(heads: &[&str], rows: &[Vec<Markup>], empty: &str) -> Markup {
    html! {
        @if rows.is_empty() {
            p.quiet { (empty) }
        } @else {
            div.scroll tabindex="0" role="group" aria-label="Table" {
                table {
                    thead { tr { @for head in heads { th scope="col" { (head) } } } }
                    tbody { @for row in rows { tr {
                        @for (head, cell) in heads.iter().zip(row) { td class=[cell_class(head)] { (cell) } }
                    } } }
                }
            }
        }
    }
}

/// Renders names and values; omits a name without a value.
pub(crate) fn facts(facts: &[(&str, Markup)]) -> Markup {
    html! {
        dl { @for (name, value) in facts { @if !value.0.is_empty() { dt { (name) } dd { (value) } } } }
    }
}

/// Renders the input for the reason of an order.
pub(crate) fn reason_input(id: &str) -> Markup {
    html! {
        label for=(id) { "Reason, for the audit log" }
        input id=(id) name="reason" maxlength="500";
    }
}

/// Renders a value unchanged.
pub(crate) fn plain(value: impl ToString) -> Markup {
    let text = display_text(&value.to_string());
    html! { (text) }
}

/// Renders an optional value.
pub(crate) fn maybe<T: ToString>(value: Option<T>) -> Markup {
    value.map(plain).unwrap_or_default()
}

/// Returns the text of a value that serializes to a JSON string.
pub(crate) fn word(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).ok();
    value.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Renders a value in a monospaced font.
pub(crate) fn code(value: impl ToString) -> Markup {
    let text = display_text(&value.to_string());
    html! { @if !text.is_empty() { code { (text) } } }
}
