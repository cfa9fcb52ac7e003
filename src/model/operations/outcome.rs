//! The end of an order to one node.

/// How the order of one node ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeOutcome {
    Done,
    Failed(String),
    Cancelled(String),
}
