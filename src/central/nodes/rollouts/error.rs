//! Why a request about a rollout is refused.

use crate::nodes::OperateError;
use meshd_model::{
    bisections::BisectionState,
    rollouts::{FloorFault, RolloutState},
};
use meshd_store::StoreError;
use meshd_types::{BisectionId, Hint as _, NodeId, ParseError, ProgramName, RolloutId};

/// Why a request about a rollout is refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    #[error("there is no rollout {0}")]
    Unknown(RolloutId),
    #[error("there is no group `{group}`")]
    NoGroup { group: String, known: String },
    #[error("the site file has no program `{program}`")]
    NoProgram { program: ProgramName },
    #[error("the rollout selects no node")]
    NoNodes,
    #[error("the rollout selects {count} nodes")]
    TooManyNodes { count: usize, most: usize },
    #[error("{}", .0.message())]
    Policy(ParseError),
    #[error(transparent)]
    Floor(#[from] FloorFault),
    #[error("node {node} is part of rollout {rollout}, which is not finished")]
    Overlap { node: NodeId, rollout: RolloutId },
    #[error("{open} rollouts are not finished")]
    TooMany { open: usize },
    #[error("the rollout changes all {nodes} nodes at once")]
    AllAtOnce { nodes: usize },
    #[error("rollout {id} is {}", .state.as_str())]
    State { id: RolloutId, state: RolloutState },
    #[error("rollout {0} changed no node")]
    NothingToUndo(RolloutId),
    #[error("there is no bisection {0}")]
    UnknownBisection(BisectionId),
    #[error("a node is part of bisection {0}, which is not finished")]
    BisectionOverlap(BisectionId),
    #[error("bisection {id} is {}", .state.as_str())]
    BisectionState { id: BisectionId, state: BisectionState },
    /// A node or the profile is unknown.
    #[error(transparent)]
    Operate(#[from] OperateError),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(RolloutError {
    RolloutError::Unknown(_) => "`meshd rollout list` lists all rollouts";
    RolloutError::NoGroup { known, .. } => "there are: {known}";
    RolloutError::NoProgram { program } => "declare it: [programs.{program}], and reload the site";
    RolloutError::NoNodes => "`meshd node list` lists all nodes";
    RolloutError::TooManyNodes { most, .. } => "select at most {most}";
    RolloutError::Overlap { rollout, .. } => "wait for it, or end it: meshd rollout abort {rollout}";
    RolloutError::TooMany { .. } => "see `meshd rollout list`";
    RolloutError::AllAtOnce { nodes } => "use waves, or confirm the number {nodes}";
    RolloutError::State { id, .. } => "see `meshd rollout show {id}`";
    RolloutError::NothingToUndo(id) => "see `meshd rollout show {id}`";
    RolloutError::UnknownBisection(_) => "`meshd bisect list` lists all bisections";
    RolloutError::BisectionOverlap(id) => "wait for it, or end it: meshd bisect abort {id}";
    RolloutError::BisectionState { id, .. } => "see `meshd bisect show {id}`";
    @source RolloutError::Policy(source) => source;
    @source RolloutError::Floor(source) => source;
    @source RolloutError::Operate(source) => source;
    @source RolloutError::Store(source) => source;
});
