//! The event log, which is append-only: actor, kind, time, cause.

use super::audit_context::{AuditContext, Cause};
use crate::fleet::{Condition, ConditionKind, Phase, Stage};
use meshd_types::{BootSessionId, NodeId, Timestamp};
use serde::{Deserialize, Serialize};

/// Most characters of an event's detail.
pub const MAX_EVENT_DETAIL: usize = 4000;

/// Place of an event in the record; grows by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventSeq(pub u64);

/// Who caused an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// The machine itself, by what it sent.
    Node,
    /// Somebody with the admin socket.
    Operator,
    /// The central node: a timer, a policy.
    Central,
    /// Somebody on the boot network who is not the machine they speak for.
    Stranger,
}

/// What happened. Conditions use their own words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum EventKind {
    /// A new machine was seen.
    Discovered,
    /// A machine was powered on.
    BootStarted,
    /// A stage of a boot was reached for the first time in its session.
    Stage {
        /// Stage that was reached.
        stage: Stage,
    },
    /// The phase changed.
    Phase {
        /// From.
        from: Phase,
        /// To.
        to: Phase,
    },
    /// Something is wrong since now, or an alarm that belongs to no node.
    Raised {
        /// Kind of the condition.
        condition: ConditionKind,
    },
    /// It is right again.
    Cleared {
        /// Kind of the condition.
        condition: ConditionKind,
    },
    /// Which profile's overlay a node was given.
    ProfileChosen,
    /// An operator assigned a profile.
    ProfileAssigned,
    /// A certificate was issued.
    CertificateIssued,
    /// A token for a machine that is not netbooted was made, or taken back.
    Token,
    /// The certificate authority was replaced, or an older one is over.
    AuthorityChanged,
    /// The certificates and tokens of a node were taken back.
    CredentialsRevoked,
    /// A certificate, token or connection was refused.
    EnrolRefused,
    /// A machine was answered with a refusal instead of a boot.
    BootRefused,
    /// A task was sent, or its outcome came.
    Task,
    /// A job began, went on, or ended.
    Job,
    /// DHCP has no free address left.
    PoolExhausted,
    /// DHCP will soon have none.
    PoolFilling,
    /// Another DHCP or PXE server is on a network that meshd serves.
    OtherDhcpServer,
    /// A machine found the address that DHCP gave it in use.
    AddressDeclined,
    /// An operator set or removed variables of a node.
    VarsChanged,
    /// An operator ordered something for one boot, took it back, or a boot used it.
    BootOnce,
    /// An operator pinned a node to a generation, or let it go.
    Pinned,
    /// An operator rolled a profile back, or let it go.
    ProfileRolledBack,
    /// Other hardware, or the same under another ID, is what a node was.
    Replaced,
    /// Site, overlays and images were read anew.
    Reloaded,
    /// Somebody took a backup.
    BackedUp,
    /// The central node was restored from a backup.
    Restored,
    /// What was edited has faults; the last good one stays.
    ReloadRefused,
    /// A virtual machine was ordered, and has a node.
    VmCreated,
    /// An operator started, stopped, restarted or deleted a virtual machine.
    VmOrdered,
    /// The guest of a virtual machine runs.
    VmStarted,
    /// A virtual machine is off, as wanted.
    VmStopped,
    /// The guest of a virtual machine is held: the store is full, or a disk fails.
    VmPaused,
    /// A virtual machine is off, and nobody wanted that.
    VmFailed,
    /// A virtual machine ended and is started again by its node.
    VmRestarted,
    /// A node has a virtual machine no more, and did not say that it ended.
    VmLost,
    /// Nothing of a virtual machine is on its node any more.
    VmReleased,
    /// A node cannot release a virtual machine.
    VmReleaseBlocked,
    /// A node has a virtual machine that is not on record.
    VmUnknown,
    /// A virtual machine is placed on another node than before.
    VmMoved,
    /// An operator approved, disabled or enabled a slot.
    SlotChanged,
    /// An operator accepted a network card as a node's own.
    NicAccepted,
    /// An operator said that a node runs no more.
    NodeFenced,
    /// A disk of a node is a virtual machine's own from now on: an image is written onto it, or it is given as it is.
    DiskWritten,
    /// A disk of a node was wiped.
    DiskWiped,
    /// Somebody sits down at the console of a virtual machine.
    VmConsole,
}

/// Every word of [`EventKind::word`] that is no condition's.
const WORDS: [&str; 45] = [
    "discovered",
    "boot_started",
    "stage",
    "phase",
    "cleared",
    "profile_chosen",
    "profile_assigned",
    "certificate_issued",
    "token",
    "authority_changed",
    "credentials_revoked",
    "enrol_refused",
    "boot_refused",
    "task",
    "job",
    "pool_exhausted",
    "pool_filling",
    "other_dhcp_server",
    "address_declined",
    "vars_changed",
    "boot_once",
    "pinned",
    "profile_rolled_back",
    "replaced",
    "reloaded",
    "backed_up",
    "restored",
    "reload_refused",
    "vm_created",
    "vm_ordered",
    "vm_started",
    "vm_stopped",
    "vm_paused",
    "vm_failed",
    "vm_restarted",
    "vm_lost",
    "vm_released",
    "vm_release_blocked",
    "vm_unknown",
    "vm_moved",
    "slot_changed",
    "node_fenced",
    "disk_written",
    "disk_wiped",
    "vm_console",
];

impl EventKind {
    /// Every word that [`EventKind::word`] can be.
    pub fn words() -> impl Iterator<Item = &'static str> + Clone {
        WORDS.into_iter().chain(ConditionKind::ALL.into_iter().map(ConditionKind::as_str))
    }

    /// The `kind` of `meshd events`: one word.
    pub fn word(&self) -> &'static str {
        match self {
            EventKind::Discovered => "discovered",
            EventKind::BootStarted => "boot_started",
            EventKind::Stage { .. } => "stage",
            EventKind::Phase { .. } => "phase",
            EventKind::Raised { condition } => condition.as_str(),
            EventKind::Cleared { .. } => "cleared",
            EventKind::ProfileChosen => "profile_chosen",
            EventKind::ProfileAssigned => "profile_assigned",
            EventKind::CertificateIssued => "certificate_issued",
            EventKind::Token => "token",
            EventKind::AuthorityChanged => "authority_changed",
            EventKind::CredentialsRevoked => "credentials_revoked",
            EventKind::EnrolRefused => "enrol_refused",
            EventKind::BootRefused => "boot_refused",
            EventKind::Task => "task",
            EventKind::Job => "job",
            EventKind::PoolExhausted => "pool_exhausted",
            EventKind::PoolFilling => "pool_filling",
            EventKind::OtherDhcpServer => "other_dhcp_server",
            EventKind::AddressDeclined => "address_declined",
            EventKind::VarsChanged => "vars_changed",
            EventKind::BootOnce => "boot_once",
            EventKind::Pinned => "pinned",
            EventKind::ProfileRolledBack => "profile_rolled_back",
            EventKind::Replaced => "replaced",
            EventKind::NicAccepted => "nic_accepted",
            EventKind::Reloaded => "reloaded",
            EventKind::BackedUp => "backed_up",
            EventKind::Restored => "restored",
            EventKind::ReloadRefused => "reload_refused",
            EventKind::VmCreated => "vm_created",
            EventKind::VmOrdered => "vm_ordered",
            EventKind::VmStarted => "vm_started",
            EventKind::VmStopped => "vm_stopped",
            EventKind::VmPaused => "vm_paused",
            EventKind::VmFailed => "vm_failed",
            EventKind::VmRestarted => "vm_restarted",
            EventKind::VmLost => "vm_lost",
            EventKind::VmReleased => "vm_released",
            EventKind::VmReleaseBlocked => "vm_release_blocked",
            EventKind::VmUnknown => "vm_unknown",
            EventKind::VmMoved => "vm_moved",
            EventKind::SlotChanged => "slot_changed",
            EventKind::NodeFenced => "node_fenced",
            EventKind::DiskWritten => "disk_written",
            EventKind::DiskWiped => "disk_wiped",
            EventKind::VmConsole => "vm_console",
        }
    }
}

/// One line of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Time.
    pub at: Timestamp,
    /// Which node, where one is known.
    pub node: Option<NodeId>,
    /// Which power-on, where one is known.
    pub session: Option<BootSessionId>,
    /// Caller or component that caused the event.
    pub actor: Actor,
    /// Kind of the event, with its details.
    pub kind: EventKind,
    /// For people; never a secret.
    pub detail: String,
    /// The order that it came of, where it came of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<AuditContext>,
    /// How often it happened: repeats of a source that is over its budget are folded into one record.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub count: u32,
    /// The first of these times; `None` if it happened once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_at: Option<Timestamp>,
    /// Nobody let its node in when it happened: such events are kept apart from those of known nodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unknown: bool,
}

/// The count of a record that stands for one time.
pub(super) fn once() -> u32 {
    1
}

/// True if a record stands for one time.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
pub(super) fn is_once(count: &u32) -> bool {
    *count == 1
}

impl Event {
    /// An event that an actor or an order caused; refine it with the methods below.
    pub fn new(at: Timestamp, cause: impl Into<Cause>, kind: EventKind, detail: impl Into<String>) -> Self {
        let Cause { actor, by } = cause.into();
        let detail = detail.into();
        Event { at, node: None, session: None, actor, kind, detail, by, count: 1, first_at: None, is_unknown: false }
    }

    /// Cuts the detail at [`MAX_EVENT_DETAIL`]: a record has a bounded size.
    pub fn bound_detail(&mut self) {
        if let Some((end, _)) = self.detail.char_indices().nth(MAX_EVENT_DETAIL) {
            self.detail.truncate(end);
        }
    }

    /// Names the node.
    pub fn of_node(mut self, node: impl Into<Option<NodeId>>) -> Self {
        self.node = node.into();
        self
    }

    /// Names the boot session.
    pub fn in_session(mut self, session: impl Into<Option<BootSessionId>>) -> Self {
        self.session = session.into();
        self
    }
}

impl From<&Condition> for EventKind {
    fn from(condition: &Condition) -> Self {
        EventKind::Raised { condition: condition.kind }
    }
}
