//! Why an order about a node is refused.

use super::operator_kernel_args::operator_args;
use crate::{
    environment::bmcs::BmcError, generations::RenderError, links::LinkError, vms::RunningWorkError,
};
use meshd_config::{Faults, MAX_VARS};
use meshd_model::fleet::{MAX_LABELS, NodeSearchError, UnlawfulTransition};
use meshd_store::{ArchiveError, StoreError};
use meshd_trust::Role;
use meshd_types::{Hint as _, MAX_NAME, MacAddr, NodeId, OperationId, ParseError, VarName};
use std::sync::Arc;

/// Maximum number of kernel arguments for one boot.
pub(super) const MAX_ONCE_ARGS: usize = 64;

/// Why an order about a node is refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    #[error("there is no node `{name}`")]
    NoNode { name: String },
    /// The names of a command match no node, or too many.
    #[error(transparent)]
    Search(#[from] NodeSearchError),
    #[error("cannot replace node {node} by itself")]
    SameNode { node: NodeId },
    #[error("cannot accept NIC {mac} for node {node}: it belongs to {holder}")]
    NicTaken { node: NodeId, mac: MacAddr, holder: String },
    #[error("cannot fence node {node}: its last message was {seconds} s ago")]
    NotSilent {
        node: NodeId,
        seconds: u64,
        /// Remaining seconds of silence.
        wait: u64,
    },
    #[error("there is no profile `{profile}`")]
    NoProfile { profile: String, known: String },
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error(transparent)]
    Naming(#[from] NamingError),
    #[error(transparent)]
    Render(#[from] Arc<RenderError>),
    /// The order would end or lose work.
    #[error(transparent)]
    RunningWork(#[from] RunningWorkError),
    /// The link of the node is down, or up.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The phase forbids the change.
    #[error(transparent)]
    Unlawful(#[from] UnlawfulTransition),
    /// An earlier order to the node has not started, or its reboot is not answered.
    #[error("node {node} has another order: operation {operation} is not finished")]
    Busy { node: NodeId, operation: OperationId },
    #[error("cannot accept the order: {open} orders to nodes are not finished")]
    TooManyOrders { open: usize },
    /// The store failed after it had accepted the order.
    #[error(
        "the result of the order to node {node} is not known yet: operation {operation} is not finished"
    )]
    Unfinished { node: NodeId, operation: OperationId },
    #[error("the order to node {node} was cancelled: {reason}")]
    Cancelled { node: NodeId, reason: String },
    #[error("node {node} refused the order: {reason}")]
    ActionFailed { node: NodeId, reason: String },
    /// A programming fault: the order needs a step before or outside its transaction.
    #[error("cannot apply the order to node {node}: it was not prepared")]
    Unprepared { node: NodeId },
    /// The BMC of the node cannot be asked.
    #[error(transparent)]
    Bmc(#[from] BmcError),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(OperateError {
    OperateError::Unprepared { .. } => "report this fault of meshd";
    OperateError::NoNode { .. } => "`meshd node list` lists all nodes";
    OperateError::SameNode { .. } => "name two nodes";
    OperateError::NotSilent { wait, .. } => "switch it off and retry after {wait} s";
    OperateError::NoProfile { known, .. } => "there are: {known}";
    OperateError::Busy { operation, .. } => "wait for it, or cancel it: meshd operation cancel {operation}";
    OperateError::Unfinished { operation, .. } => "follow it: meshd operation follow {operation}";
    OperateError::TooManyOrders { .. } => "retry later, or see `meshd operation list`";
    @source OperateError::Search(source) => source;
    @source OperateError::Order(source) => source;
    @source OperateError::Naming(source) => source;
    @source OperateError::Render(source) => source;
    @source OperateError::RunningWork(source) => source;
    @source OperateError::Link(source) => source;
    @source OperateError::Unlawful(source) => source;
    @source OperateError::Bmc(source) => source;
    @source OperateError::Store(source) => source;
});

/// Why a boot setting is refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    #[error("node {node} has no variable `{name}`")]
    NoVar { node: NodeId, name: VarName },
    #[error("no overlay declares variable `{name}` of node {node}")]
    UnknownVar {
        node: NodeId,
        name: VarName,
        /// The most similar name, or the declared names.
        hint: String,
    },
    #[error("cannot set variables of node {node}: {count} exceed the limit of {MAX_VARS}")]
    TooManyVars { node: NodeId, count: usize },
    #[error("cannot set variable `{name}` of node {node}: the value {what}")]
    WrongVar { node: NodeId, name: VarName, what: String, hint: String },
    /// The text contains the faults, also in the record of an operation, so they are no source.
    #[error("node {node} would not boot with these variables: {faults}")]
    VarsDoNotRender { node: NodeId, faults: Faults },
    #[error("kernel argument {}", .0.message())]
    KernelArg(ParseError),
    /// A kernel argument that another role may set.
    #[error("kernel argument `{arg}` for one boot: role {role} may not set it")]
    ForbiddenArg { arg: String, role: Role },
    #[error("an override for one boot is a profile or up to {MAX_ONCE_ARGS} kernel arguments")]
    NoOrder,
    #[error("node {node} is pinned to one generation")]
    Pinned { node: NodeId },
    #[error("node {node} is not pinned")]
    NotPinned { node: NodeId },
    #[error("node {node} has no generation `{text}` on record, or several")]
    NoGeneration { node: NodeId, text: String },
    #[error("node {node} has not reported which generation it runs")]
    RunsNothing { node: NodeId },
    /// The running generation is not in the archive.
    #[error(transparent)]
    NotArchived(ArchiveError),
    #[error("node {node} has no override for its next boot")]
    NothingOrdered { node: NodeId },
}

meshd_types::hints!(OrderError {
    OrderError::NoVar { node, .. } => "`meshd node show {node}` lists them";
    OrderError::UnknownVar { hint, .. } => "{hint}";
    OrderError::WrongVar { hint, .. } => "{hint}";
    OrderError::ForbiddenArg { .. } => "ask an admin, or use one of {}", operator_args();
    OrderError::NoOrder => "name --profile or --kernel-arg";
    OrderError::Pinned { node } => "unpin it first: meshd node pin {node} --off";
    OrderError::NotPinned { node } => "`meshd node show {node}` shows pins";
    OrderError::NoGeneration { node, .. } => "`meshd node history {node}` and `meshd profile history` list them";
    OrderError::RunsNothing { node } => "a node reports it after a network boot; `meshd node history {node}` lists all";
    OrderError::NothingOrdered { node } => "`meshd node show {node}` shows overrides";
    @source OrderError::KernelArg(source) => source;
    @source OrderError::NotArchived(source) => source;
});

/// Why labels or a name are refused.
#[derive(Debug, thiserror::Error)]
pub enum NamingError {
    #[error("cannot label node {node}: it would have {count} labels")]
    TooManyLabels { node: NodeId, count: usize },
    #[error("cannot rename node {node}: `{name}` is not a host name")]
    InvalidName { node: NodeId, name: String },
    #[error("cannot rename node {node}: `{name}` is reserved for another machine or an address")]
    ReservedName { node: NodeId, name: String },
    #[error("cannot rename node {node}: node {holder} has the name `{name}`")]
    NameTaken { node: NodeId, name: String, holder: NodeId },
    #[error("cannot rename node {node}: the expected machine {mac} has the name `{name}`")]
    NameExpected { node: NodeId, name: String, mac: MacAddr },
}

meshd_types::hints!(NamingError {
    NamingError::TooManyLabels { .. } => "use at most {MAX_LABELS}";
    NamingError::InvalidName { .. } => "use 1 to {MAX_NAME} of a-z, 0-9 and `-`, with a letter or digit at both ends";
    NamingError::ReservedName { .. } => "use another name";
    NamingError::NameTaken { .. } => "use another name";
    NamingError::NameExpected { .. } => "use another name";
});
