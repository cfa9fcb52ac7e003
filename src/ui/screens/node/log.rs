//! The log of one boot of a node: kernel messages, system log, serial console.

use crate::{
    PREFIX,
    client::ApiClient,
    form::Fields,
    html::{self, Page, display_text},
    plain_text::visible,
    screens::Answer,
};
use axum::{
    extract::{Path, Query},
    http::HeaderMap,
};
use maud::{Markup, html};
use meshd_api::{BootLogLine, TimelineView, routes as api};
use meshd_proto::log::LogSource;
use std::collections::BTreeMap;

/// Maximum number of log bytes to read, from the newest records. The stored log of one boot is
/// smaller.
const MAX_LOG: usize = 1 << 20;
/// Maximum number of lines on the page. Newer lines have priority.
const MAX_LINES: usize = 5000;

const SOURCES: [LogSource; 5] = [
    LogSource::Kernel,
    LogSource::System,
    LogSource::Console,
    LogSource::Netconsole,
    LogSource::BootFailure,
];

pub(crate) async fn page(
    client: ApiClient,
    Path(node): Path<String>,
    Query(query): Query<Fields>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let path = api::GET_NODE_TIMELINE.path([&node]).with_nonempty("session", query.text("session"));
    let boot = client.get(path).await.map_err(failed)?;
    let path = api::GET_NODE_LOG.path([&node]).with("session", boot.session);
    let records = client.tail(path, MAX_LOG).await.map_err(failed)?;
    let lines = matching(&lines(&records), query.text("source"), query.text("q"));
    let content = html! {
        h1 { "Log of " (html::node_link(&boot.node.to_string(), &boot.name)) }
        p { "Boot " code { (boot.session) } " of " (html::time(boot.opened_at)) ", " (boot.result.as_str()) }
        (filters(&boot, &query))
        div id="log" data-live {
            @if lines.is_empty() { p.quiet { "No lines match. Kernel and system messages come when the agent is linked." } }
            @else { pre.output tabindex="0" aria-label="Log" { @for line in &lines { (line) "\n" } } }
        }
    };
    let title = format!("Log of {}", boot.name);
    Ok(Page { client: &client, title, nav_path: "/nodes", content }.answer(&headers))
}

fn filters(boot: &TimelineView, query: &Fields) -> Markup {
    html! {
        form.filters action=(format!("{PREFIX}/nodes/{}/log", boot.node)) {
            label { "Text" input name="q" type="search" value=(query.text("q")); }
            label { "Source" select name="source" {
                option value="" { "all" }
                @for source in SOURCES { option value=(source.as_str()) selected[query.text("source") == source.as_str()] { (source.as_str()) } }
            } }
            label { "Boot" select name="session" {
                @for other in &boot.boots {
                    option value=(other.session) data-time=(other.opened_at) selected[other.session == boot.session] { (other.opened_at) ", " (other.result.as_str()) }
                }
            } }
            button.main { "Show" }
        }
    }
}

/// Returns complete lines in storage order, with their source. Omits the first record if it is cut.
fn lines(records: &[u8]) -> Vec<(LogSource, String)> {
    let mut partial: BTreeMap<LogSource, Vec<u8>> = BTreeMap::new();
    let mut lines = Vec::new();
    for record in records.split(|byte| *byte == b'\n') {
        let Ok(BootLogLine::Piece(piece)) = serde_json::from_slice(record) else { continue };
        let source = piece.stream;
        let text = partial.entry(source).or_default();
        text.extend(piece.data.into_bytes().unwrap_or_default());
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let complete: Vec<u8> = text.drain(..whole).collect();
        lines
            .extend(String::from_utf8_lossy(&complete).lines().map(|line| (source, visible(line))));
    }
    for (source, rest) in partial {
        lines
            .extend((!rest.is_empty()).then(|| (source, visible(&String::from_utf8_lossy(&rest)))));
    }
    lines
}

/// Returns the newest lines of a source that contain a text, ignoring case.
fn matching(lines: &[(LogSource, String)], source: &str, text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let is_match = |(own, line): &&(LogSource, String)| {
        (source.is_empty() || own.as_str() == source)
            && (text.is_empty() || line.to_lowercase().contains(&text))
    };
    let matching: Vec<String> =
        lines.iter().filter(is_match).map(|(_, line)| display_text(line)).collect();
    matching[matching.len().saturating_sub(MAX_LINES)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(source: &str, at: u64, data: &str) -> String {
        let line = serde_json::json!({
            "when": "2026-01-01T00:00:00Z", "node": "00000001", "stream": source, "at": at, "data": data
        });
        format!("{line}\n")
    }

    #[test]
    fn split_log_lines_are_joined_per_source() {
        let records = [
            "cut off\n".to_owned(),
            record("kernel", 0, "[    0.000000] Linux\n[    0.1"),
            record("system", 0, "started \u{1b}[31mred\u{1b}[0m\n"),
            record("kernel", 27, "00000] eth0 up\n"),
        ];
        let lines = lines(records.concat().as_bytes());
        let texts: Vec<&str> = lines.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(texts, ["[    0.000000] Linux", "started red", "[    0.100000] eth0 up"]);
        assert_eq!(matching(&lines, "kernel", "ETH0"), ["[    0.100000] eth0 up"]);
        assert_eq!(matching(&lines, "system", "eth0"), Vec::<String>::new());
        assert_eq!(matching(&lines, "", "").len(), 3);
    }
}
