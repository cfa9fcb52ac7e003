//! What a search found.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a search found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchView {
    /// At most 50, the best first.
    pub hits: Vec<SearchHit>,
    /// Everything that was found, including hits that are left out.
    pub total: usize,
}

/// One node, virtual machine or task that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchHit {
    /// `node`, `vm` or `task`.
    pub kind: String,
    /// ID of the node or task, UUID of the virtual machine.
    pub id: String,
    /// Name of the node or virtual machine, program of the task.
    pub name: String,
    /// Phase of the node, state of the virtual machine or task.
    pub state: String,
    /// The field that contains the text: `id`, `name`, `mac`, `address`, `serial`, `board_serial`, `uuid`, `group` or `argv`.
    pub field: String,
    /// The value of that field.
    pub value: String,
}
