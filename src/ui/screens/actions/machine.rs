//! The facts by which a person recognises a machine before it is approved.

use super::catalog::Action;
use crate::{
    client::{ApiClient, ApiError},
    html,
};
use maud::Markup;
use meshd_api::{NodeView, routes as api};
use meshd_types::{MacAddr, NodeId};
use serde::Deserialize;

/// Names of the fields of [`Machine`] in the API.
const FIELDS: &str = "id,mac,model,serial,segment";

#[derive(Deserialize)]
pub(in crate::screens) struct Machine {
    pub(super) id: NodeId,
    mac: MacAddr,
    #[serde(default)]
    model: String,
    #[serde(default)]
    serial: String,
    #[serde(default)]
    segment: Option<String>,
}

/// Returns the machines of the site for an action that decides about new machines: an operator
/// compares them with their stickers.
pub(super) async fn to_compare(
    client: &ApiClient,
    action: &Action,
) -> Result<Vec<Machine>, ApiError> {
    if !matches!(action.word().as_str(), "approve" | "reject") {
        return Ok(Vec::new());
    }
    client.get_fields(api::LIST_NODES.path([]).with("fields", FIELDS)).await
}

impl Machine {
    pub(in crate::screens) fn of(node: &NodeView) -> Self {
        Machine {
            id: node.id,
            mac: node.mac,
            model: node.model.clone(),
            serial: node.serial.clone(),
            segment: node.segment.clone(),
        }
    }

    pub(in crate::screens) fn facts(&self) -> Markup {
        html::facts(&[
            ("Model", html::plain(&self.model)),
            ("Serial number", html::code(&self.serial)),
            ("MAC address", html::code(self.mac)),
            ("Segment", html::maybe(self.segment.as_ref())),
        ])
    }
}
