//! Results of a search.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Results of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchView {
    /// At most 50 hits, best first.
    pub hits: Vec<SearchHit>,
    /// Number of all hits, including those that `hits` omits.
    pub total: usize,
}

/// A node, VM, container or task that matches the search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchHit {
    /// `node`, `vm`, `container` or `task`.
    pub kind: String,
    /// ID of the node or task, UUID of the VM, or name of the container.
    pub id: String,
    /// Name of the node, VM or container, or program of the task.
    pub name: String,
    /// Phase of the node, state of the VM or task, or replicas of the container that run.
    pub state: String,
    /// Field that contains the text: `id`, `name`, `mac`, `address`, `serial`, `board_serial`,
    /// `uuid`, `image`, `group` or `argv`.
    pub field: String,
    /// Value of that field.
    pub value: String,
}
