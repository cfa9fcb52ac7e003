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

/// A node, VM or task that matches the search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchHit {
    /// `node`, `vm` or `task`.
    pub kind: String,
    /// ID of the node or task, or UUID of the VM.
    pub id: String,
    /// Name of the node or VM, or program of the task.
    pub name: String,
    /// Phase of the node, or state of the VM or task.
    pub state: String,
    /// Field that contains the text: `id`, `name`, `mac`, `address`, `serial`, `board_serial`,
    /// `uuid`, `group` or `argv`.
    pub field: String,
    /// Value of that field.
    pub value: String,
}
