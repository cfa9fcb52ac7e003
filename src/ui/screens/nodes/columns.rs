//! Columns of the node list. The address of the page holds the user's choice.

use crate::html::{self, bytes, code, display_text, duration, maybe, plain};
use maud::{Markup, html};
use meshd_api::{BootView, NodeView};
use meshd_model::fleet::{Stage, label_words};

/// A column beside the name.
pub(super) struct Column {
    /// Word in the address.
    pub(super) key: &'static str,
    pub(super) title: &'static str,
    /// Order of the API, if the column sorts the list.
    pub(super) sort: Option<&'static str>,
    /// True if the column is shown without a choice.
    is_default: bool,
    pub(super) class: Option<&'static str>,
    pub(super) cell: fn(&NodeView) -> Markup,
}

const fn column(key: &'static str, title: &'static str, cell: fn(&NodeView) -> Markup) -> Column {
    Column { key, title, sort: None, is_default: false, class: None, cell }
}

impl Column {
    const fn sorts(self, order: &'static str) -> Self {
        Column { sort: Some(order), ..self }
    }

    const fn by_default(self) -> Self {
        Column { is_default: true, ..self }
    }

    const fn of_words(self) -> Self {
        Column { class: Some("list"), ..self }
    }
}

/// All columns, in their order.
pub(super) const COLUMNS: [Column; 17] = [
    column("id", "ID", |node| code(node.id)).sorts("id").by_default(),
    column("phase", "Phase", |node| html::phase(node.phase)).sorts("phase").by_default(),
    column("conditions", "Conditions", conditions).of_words().by_default(),
    column("profile", "Profile", profile).sorts("profile").by_default(),
    column("address", "Address", |node| maybe(node.address)).sorts("address").by_default(),
    column("mac", "MAC address", |node| code(node.mac)).sorts("mac"),
    column("model", "Model", |node| plain(&node.model)),
    column("serial", "Serial number", |node| code(&node.serial)),
    column("gpus", "GPUs", |node| maybe(node.gpus)),
    column("memory", "Memory", |node| maybe(node.memory.map(bytes))),
    column("segment", "Segment", |node| maybe(node.segment.as_ref())),
    column("port", "Switch port", |node| plain(switch_port(node))),
    column("stage", "Boot stage", |node| maybe(stage(node).map(Stage::as_str))),
    column("boot", "Boot time", |node| maybe(boot_time(node))),
    column("generation", "Generation", |node| {
        maybe(node.generation.map(|generation| generation.0.short()))
    }),
    column("labels", "Labels", |node| plain(label_words(&node.labels))).of_words().by_default(),
    column("seen", "Last seen", |node| html::last_seen(node.phase, node.last_seen))
        .sorts("last_seen")
        .by_default(),
];

/// Returns the columns that the address chooses; the default ones if it chooses none.
pub(super) fn chosen<'q>(keys: impl Iterator<Item = &'q str> + Clone) -> Vec<&'static Column> {
    let is_chosen = |column: &&Column| keys.clone().any(|key| key == column.key);
    let chosen: Vec<_> = COLUMNS.iter().filter(is_chosen).collect();
    if chosen.is_empty() {
        return COLUMNS.iter().filter(|column| column.is_default).collect();
    }
    chosen
}

fn conditions(node: &NodeView) -> Markup {
    html! { @for condition in &node.conditions { (html::condition_badge(condition.kind)) " " } }
}

fn profile(node: &NodeView) -> Markup {
    html! { (node.profile) @if !node.assigned { span.quiet { " (default)" } } }
}

/// Circuit ID and remote ID, as the relay reports them.
fn switch_port(node: &NodeView) -> String {
    let ids = [&node.circuit_id, &node.remote_id].into_iter().flatten();
    ids.map(|id| display_text(id)).collect::<Vec<_>>().join(" · ")
}

fn stage(node: &NodeView) -> Option<Stage> {
    node.boot.as_ref().and_then(|boot| boot.stage)
}

/// Returns the duration of the newest boot that reached its end.
fn boot_time(node: &NodeView) -> Option<String> {
    let boot: &BootView = node.boot.as_ref()?;
    let online = boot.stages.iter().find(|mark| mark.stage == Stage::Online)?;
    Some(duration(u64::try_from(online.at.since(boot.opened_at).as_millis()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn unknown_columns_are_ignored_and_keys_are_distinct() {
        let keys: BTreeSet<_> = COLUMNS.iter().map(|column| column.key).collect();
        assert_eq!(keys.len(), COLUMNS.len());
        let titles = |keys: &[&'static str]| {
            chosen(keys.iter().copied()).iter().map(|column| column.title).collect::<Vec<_>>()
        };
        assert_eq!(titles(&["memory", "<script>", "gpus"]), ["GPUs", "Memory"]);
        assert_eq!(titles(&["x"]), titles(&[]));
        assert_eq!(titles(&[]).len(), 7);
    }
}
