//! Step 2, fleet: nodes, who they are, what phase they are in, what is wrong with them. All of it pure.

mod admission;
mod idempotency;
mod audit;
mod boot_loop;
mod boot_session;
mod audit_context;
mod certificate;
mod condition;
mod event;
mod generation;
mod history;
mod identity;
mod kept;
mod lease;
mod node_transitions;
mod node;
mod phase;
mod readiness;
mod relay_port;
mod revision;
mod stage;
mod stall;
mod units;
mod deadline_queue;

pub use admission::admitting;
pub use audit::{Audit, AuditOutcome, AuditSeq};
pub use audit_context::{AuditContext, Cause, MAX_REASON, ParseWhoError, Principal, Verb};
pub use boot_loop::{BootLoop, LOOP_ALIKE, LOOP_UNLIKE, boot_loop};
pub use boot_session::{BootSession, BootStatus, DhcpExchange, LONGEST_BOOT, Outcome, SESSION_WINDOW, Wait};
pub use certificate::Certificate;
pub use condition::{Condition, ConditionKind};
pub use deadline_queue::DeadlineQueue;
pub use event::{Actor, Event, EventKind, EventSeq};
pub use generation::{ConditionChanges, Generation, judge, judge_drift};
pub use history::{DeliveredGeneration, History, KEPT_OF_A_NODE, MAX_HISTORY};
pub use idempotency::{Answered, IdempotencyRecord};
pub use identity::{
    ConflictingMachine, Identified, IdentityConflict, MAX_RIVALS, ObservedMachine, RIVAL_NOTED, identify,
};
pub use kept::{FileChange, FileDiff, GenerationDiff, KEPT_FORMAT, KeptFile, KeptGeneration, KeptKind, NextBoot};
pub use lease::Lease;
pub use node::{Fingerprint, LinkState, NextBootOverride, Node};
pub use phase::{Phase, PhaseChange, Transition, UnlawfulTransition};
pub use readiness::CheckProvenance;
pub use relay_port::RelayPort;
pub use revision::{MAX_REVISIONS, Revision, RevisionSummary, Revisions};
pub use stage::{Stage, StageMark};
pub use stall::{Chain, Stall, stall};
pub use units::{Placed, UnitMap};
