//! Rollouts: planned changes of many nodes, as records. Pure.
//!
//! | module | content |
//! | --- | --- |
//! | `advance` | the next step of a rollout: changes of its records, and orders to nodes |
//! | `checkpoint` | points at which a node waits for a program |
//! | `estimate` | the remaining time of a rollout |
//! | `floors` | capacity floors: how many nodes must serve |
//! | `health` | the health of a node in progress, and what its step depends on |
//! | `inventory` | the present state of nodes, which a step reads |
//! | `node_step` | the next step of one node |
//! | `plan` | divides nodes into waves |
//! | `policy` | what a rollout changes, and how many nodes at once |
//! | `program` | programs of the site: before a node leaves, its gate, after its return |
//! | `record` | the records of a rollout and of its nodes |
//! | `returning` | the return of a failed node to what it ran |
//! | `window` | the daily time in which nodes begin |
//!
//! A rollout is one head record, [`Rollout`], and one [`RolloutNode`] for each of its nodes. A step
//! depends only on the records and on the present state of the nodes, never on earlier events. So a
//! step that is lost, or is repeated after a restart, changes nothing.

mod advance;
mod checkpoint;
mod estimate;
mod floors;
mod health;
mod inventory;
mod node_step;
mod plan;
mod policy;
mod program;
mod record;
mod returning;
mod window;

#[cfg(test)]
mod tests;

pub use advance::{RolloutStep, advance};
pub use estimate::{node_times, remaining_time};
pub use floors::{FloorFault, check_floors};
pub use health::StepTime;
pub use inventory::{Inventory, NodePresent, RefusedOrder};
pub use plan::{PlannedNode, waves};
pub use policy::{Amount, Floor, MAX_FLOORS, RolloutPolicy, RolloutTarget, WorkPolicy};
pub use program::{EndedProgram, GateVerdict, ProgramOutcome, ProgramPoint};
pub use record::{
    BootKey, NodeSettings, NodeStage, Rollout, RolloutNode, RolloutState, StageCounts,
};
pub use window::DailyWindow;
