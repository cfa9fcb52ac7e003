//! Nodes and their boots: pure.
//!
//! | module | content |
//! | --- | --- |
//! | `node` | record, identity, phases, conditions |
//! | `boot` | boot sessions, stalls, boot loops |
//! | `generations` | generations, their history on nodes, revisions of profiles |
//! | `events` | event log, audit log, idempotency keys |
//! | `deadline_queue` | heartbeat deadlines |
//! | `dhcp_lease` | DHCP leases |

mod boot;
mod deadline_queue;
mod events;
mod generations;
mod dhcp_lease;
mod node;

pub use boot::{
    boot_loop::BootLoop, boot_loop::LOOP_ALIKE, boot_loop::LOOP_UNLIKE, boot_loop::boot_loop,
    boot_session::BootSession, boot_session::BootStatus, boot_session::DhcpExchange, boot_session::LONGEST_BOOT,
    boot_session::Outcome, boot_session::SESSION_WINDOW, boot_session::Wait, stage::Stage, stage::StageMark,
    stall::Chain, stall::Stall, stall::stall,
};
pub use deadline_queue::DeadlineQueue;
pub use dhcp_lease::Lease;
pub use events::{
    audit::Audit, audit::AuditOutcome, audit::AuditSeq, audit_context::AuditContext, audit_context::Cause,
    audit_context::MAX_REASON, audit_context::ParsePrincipalError, audit_context::Principal, audit_context::Verb,
    event::Actor, event::Event, event::EventKind, event::EventSeq, idempotency::IdempotencyRecord,
    idempotency::StoredResponse,
};
pub use generations::{
    archive::ARCHIVE_FORMAT, archive::ArchivedFile, archive::ArchivedGeneration, archive::ArchivedKind,
    archive::FileChange, archive::FileDiff, archive::GenerationDiff, archive::NextBoot, generation::ConditionChanges,
    generation::Generation, generation::update_boot_conditions, generation::update_drift, history::ARCHIVED_PER_NODE,
    history::DeliveredGeneration, history::History, history::MAX_HISTORY, revision::MAX_REVISIONS, revision::Revision,
    revision::RevisionDiff, revision::RevisionSummary, revision::Revisions,
};
pub use node::{
    approval_rules::matching_rule, certificate::Certificate, check_validity::CheckProvenance, condition::Condition,
    condition::ConditionKind, identity::CONFLICT_UPDATE_INTERVAL, identity::ConflictingMachine, identity::Identified,
    identity::IdentityConflict, identity::MAX_CONFLICTING_MACHINES, identity::ObservedMachine, identity::identify,
    label::LabelChange, label::LabelError, label::LabelKey, label::LabelValue, label::Labels, label::MAX_LABELS,
    label::label_words, phase::Phase, phase::PhaseChange, phase::Transition, phase::UnlawfulTransition,
    record::Fingerprint, record::LinkState, record::NextBootOverride, record::Node, relay_port::RelayPort,
    selector::NamedNode, selector::Selector, selector::SelectorError, selector::find_node, unit_map::ApprovedFunction,
    unit_map::UnitMap,
};
