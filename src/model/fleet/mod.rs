//! Nodes and their boots: pure.
//!
//! | module | content |
//! | --- | --- |
//! | `node` | record, identity, phases, conditions |
//! | `boot_progress` | boot sessions and their stages, stalls, boot loops |
//! | `generations` | generations, their history on nodes, revisions of profiles |
//! | `events` | event log, audit log, idempotency keys |
//! | `expected_machine` | what an operator defines of a machine before it boots |
//! | `deadline_queue` | heartbeat deadlines |
//! | `dhcp_lease` | DHCP leases |

mod boot_progress;
mod deadline_queue;
mod events;
mod expected_machine;
mod generations;
mod dhcp_lease;
mod node;

pub use boot_progress::{
    boot_loop::{BootLoop, LOOP_ALIKE, LOOP_UNLIKE, boot_loop},
    boot_session::{
        BootSession, BootStatus, LONGEST_BOOT, Outcome, SESSION_WINDOW, Wait, WarmState,
    },
    boot_times::{
        Baseline, BootComparison, BootDelay, BootOrder, BootPath, BootStep, BootStepTime,
        DelayKind, stage_times,
    },
    dhcp_attempt::{DhcpAttempt, DhcpClient, DhcpRequest, MAX_DHCP_ATTEMPTS},
    stage::{Stage, StageMark},
    stall::Stall,
    stall_detection::{Chain, stall},
    warm_reboot::{ColdBoot, WarmReboot, WarmRebootResult, cold_boot_remedy},
};
pub use deadline_queue::DeadlineQueue;
pub use dhcp_lease::Lease;
pub use events::{
    audit::{Audit, AuditOutcome, AuditSeq},
    audit_context::{AuditContext, AuditMark, MAX_REASON, Principal, Verb},
    cause::{Actor, Cause},
    event::{Event, EventKind, EventSeq},
    idempotency::{IdempotencyRecord, StoredResponse},
};
pub use expected_machine::{
    ExpectedMachine, MAX_EXPECTED_MACHINES,
    rows::{LocatedMachine, MACHINE_COLUMNS, MAX_MACHINE_ROWS, MachineRow, RowFault, parse_rows},
};
pub use generations::{
    archive::{
        ARCHIVE_FORMAT, ArchivedFile, ArchivedGeneration, ArchivedKind, FileChange, FileDiff,
        GenerationDiff,
    },
    generation::Generation,
    history::{ARCHIVED_PER_NODE, DeliveredGeneration, History, MAX_HISTORY},
    next_boot::{ConditionChanges, NextBoot, update_boot_conditions, update_drift},
    revision::{MAX_REVISIONS, Revision, RevisionDiff, RevisionSummary, Revisions},
};
pub use node::{
    approval_rules::matching_rule,
    certificate::Certificate,
    condition::{Condition, ConditionKind},
    identity::{
        CONFLICT_UPDATE_INTERVAL, Identified, IdentityConflict, MAX_CONFLICTING_MACHINES,
        ObservedMachine, identify,
    },
    label::{LabelChange, LabelKey, LabelValue, Labels, MAX_LABELS, label_words},
    node_search::{NodeSearchError, find_node, find_nodes},
    phase::{Phase, PhaseChange, Transition, UnlawfulTransition},
    record::{CheckProvenance, ConflictingMachine, Fingerprint, LinkState, NextBootOverride, Node},
    relay_port::RelayPort,
    selector::Selector,
    severity::Severity,
    unit_map::{ApprovedFunction, UnitMap},
};
