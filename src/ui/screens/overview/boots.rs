//! The boots in progress.

use super::{
    wall,
    wall_node::{Boot, WallNode},
};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError},
};
use maud::{Markup, html};
use meshd_api::routes as api;
use meshd_model::fleet::{Phase, Stage};
use meshd_types::{NodeId, Timestamp};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Maximum number of booting nodes with their progress.
const MAX_BOOTS: usize = 60;
/// Number of booting nodes in the list above a wall of cells.
const ROWS: usize = 6;
/// Phases of nodes that show the progress of a boot.
const PHASES: [Phase; 4] = [Phase::Booting, Phase::Enrolling, Phase::Approved, Phase::Discovered];

/// A node that boots, with the stage that it reached.
#[derive(Deserialize)]
struct BootingNode {
    id: NodeId,
    phase: Phase,
    boot: Option<NewestBoot>,
}

#[derive(Deserialize)]
struct NewestBoot {
    opened_at: Timestamp,
    stage: Option<Stage>,
}

/// Returns the boots in progress, those of the nodes that were seen last.
pub(super) async fn load(client: &ApiClient) -> Result<BTreeMap<NodeId, Boot>, ApiError> {
    let path = api::LIST_NODES.path([]).with("phase", phases()).with("sort", "-last_seen");
    let path = path.with("limit", MAX_BOOTS).with("fields", "id,phase,boot");
    let booting: Vec<BootingNode> = client.get_fields(path).await?;
    let boots = booting.into_iter().filter(|node| PHASES.contains(&node.phase));
    let boots = boots.filter_map(|node| {
        let NewestBoot { opened_at, stage } = node.boot?;
        Some((node.id, Boot { opened_at, stage: stage? }))
    });
    Ok(boots.collect())
}

fn phases() -> String {
    PHASES.map(Phase::as_str).join(",")
}

/// Renders the boots in progress, above a wall whose cells have no room for them: the longest ones
/// first, since a boot that takes long may need help.
pub(super) fn list(nodes: &[WallNode], boots: &BTreeMap<NodeId, Boot>) -> Markup {
    let boot_of = |node: &WallNode| boots.get(&node.id);
    let mut booting: Vec<_> =
        nodes.iter().filter_map(|node| boot_of(node).map(|boot| (node, boot))).collect();
    booting.sort_by_key(|(_, boot)| boot.opened_at);
    html! {
        @if !booting.is_empty() {
            h2 { "Boots in progress" }
            div.tiles.boots {
                @for (node, boot) in booting.iter().take(ROWS) { (wall::tile(node, Some(boot))) }
            }
            @if booting.len() > ROWS {
                p { a href=(format!("{PREFIX}/nodes?phase={}&sort=-last_seen", phases())) { "All nodes that boot" } }
            }
        }
    }
}
