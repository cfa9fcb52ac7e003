//! Step 2, fleet: nodes, who they are, what phase they are in, what is wrong with them. All of it pure.

mod boot_loop;
mod boot_session;
mod by;
mod condition;
mod event;
mod generation;
mod history;
mod identity;
mod kept;
mod lease;
mod node;
mod phase;
mod revision;
mod stage;
mod stall;
mod units;

pub use boot_loop::{BootLoop, LOOP_ALIKE, LOOP_UNLIKE, boot_loop};
pub use boot_session::{BootSession, Exchange, Outcome, SESSION_WINDOW, Standing, Wait};
pub use by::{By, Cause, MAX_REASON, ParseWhoError, Verb, Who};
pub use condition::{Condition, ConditionKind};
pub use event::{Actor, Event, EventKind, EventSeq};
pub use generation::{Generation, Told, judge, judge_drift};
pub use history::{Given, History, KEPT_OF_A_NODE, MAX_HISTORY};
pub use identity::{Claim, Identified, Sighting, identify};
pub use kept::{FileChange, FileDiff, GenerationDiff, KEPT_FORMAT, KeptFile, KeptGeneration, KeptKind, Outlook};
pub use lease::Lease;
pub use node::{Fingerprint, LinkState, Node, Once};
pub use phase::{Phase, PhaseChange, Transition, UnlawfulTransition};
pub use revision::{MAX_REVISIONS, Revised, Revision, Revisions};
pub use stage::{Stage, StageMark};
pub use stall::{Chain, Stall, stall};
pub use units::{Placed, UnitMap};
