//! The event log, which is append-only: actor, kind, time, cause.

use super::{
    audit_context::AuditContext,
    cause::{Actor, Cause},
};
use crate::fleet::{Condition, ConditionKind, Phase, Stage};
use meshd_types::{BootSessionId, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use strum::VariantNames as _;

/// Maximum length of a detail, in characters.
pub const MAX_EVENT_DETAIL: usize = 4000;

/// Sequence number of an event.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
#[derive(utoipa::ToSchema)]
pub struct EventSeq(pub u64);

/// The kinds of events. Conditions use their own words.
#[derive(
    Clone, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr, strum::VariantNames,
)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum EventKind {
    Discovered,
    /// A machine was powered on.
    BootStarted,
    /// A stage of a boot was reached for the first time in its session.
    Stage {
        stage: Stage,
    },
    /// The phase changed.
    Phase {
        from: Phase,
        to: Phase,
    },
    /// A condition was raised, or an alarm without node.
    Raised {
        condition: ConditionKind,
    },
    /// A condition was cleared.
    Cleared {
        condition: ConditionKind,
    },
    /// A node received the overlay of a profile.
    ProfileChosen,
    /// An operator assigned a profile.
    ProfileAssigned,
    CertificateIssued,
    /// A token was created or revoked.
    Token,
    /// The certificate authority was replaced, or an old one expired.
    AuthorityChanged,
    /// The certificates and tokens of a node were revoked.
    CredentialsRevoked,
    /// A certificate, token or connection was refused.
    EnrolRefused,
    /// A machine received a refusal script.
    BootRefused,
    /// A machine loaded all parts, and `mesh-init` or stage 1 refused to start the node.
    BootFailed,
    /// An action was sent to a node, or its outcome arrived.
    NodeAction,
    /// A task changed its state.
    Task,
    /// A container was ordered, placed or lost, or a replica changed its state.
    Container,
    /// DHCP has no free address.
    PoolExhausted,
    /// DHCP has few free addresses.
    PoolFilling,
    /// A foreign DHCP or PXE server is on a served network.
    OtherDhcpServer,
    /// A machine declined its address because it is in use.
    AddressDeclined,
    /// An operator set or removed variables of a node.
    VarsChanged,
    /// An operator set or removed labels of a node.
    LabelsChanged,
    /// An operator renamed a node.
    Renamed,
    /// An operator set or cleared a one-time boot, or a boot used it.
    BootOnce,
    /// An operator pinned or unpinned a node.
    Pinned,
    /// An operator rolled a profile back, or released it.
    ProfileRolledBack,
    /// A node moved to other hardware or another ID.
    Replaced,
    /// Site, overlays and images were reloaded.
    Reloaded,
    BackedUp,
    /// The central node was restored from a backup.
    Restored,
    /// A reload failed; the last good configuration stays.
    ReloadRefused,
    /// A VM was ordered and placed.
    VmCreated,
    /// An operator started, stopped, restarted or deleted a VM.
    VmOrdered,
    /// The guest of a VM runs.
    VmStarted,
    /// A VM is off, as desired.
    VmStopped,
    /// The guest of a VM was paused: the store is full, or a disk fails.
    VmPaused,
    /// A VM is off unexpectedly.
    VmFailed,
    /// A VM ended and restarts.
    VmRestarted,
    /// A node lost a VM without reporting its end.
    VmLost,
    VmReleased,
    /// A node cannot release a VM.
    VmReleaseBlocked,
    /// A node has an unknown VM.
    VmUnknown,
    VmMoved,
    /// An operator approved, disabled or enabled a slot.
    SlotChanged,
    /// An operator accepted a NIC of a node.
    NicAccepted,
    NodeFenced,
    /// An operator imported machines that have not booted yet, or changed them.
    MachinesExpected,
    /// An operator removed expected machines.
    ExpectedRemoved,
    /// A VM owns a disk of its node from now on.
    DiskWritten,
    /// A disk of a node was wiped.
    DiskWiped,
    VmConsole,
    /// An admin opened a shell of a node, or such a shell ended.
    NodeShell,
    /// An admin opened a shell of a guest, or such a shell ended.
    VmShell,
    /// A rollout was started, paused, resumed or ended, or a node of it failed.
    Rollout,
}

impl EventKind {
    /// Returns every word of [`EventKind::word`].
    pub fn words() -> impl Iterator<Item = &'static str> + Clone {
        let own = EventKind::VARIANTS.iter().copied().filter(|word| *word != "raised");
        own.chain(ConditionKind::ALL.into_iter().map(ConditionKind::as_str))
    }

    /// Returns the `kind` of `meshd events`: the name of the condition for [`EventKind::Raised`].
    pub fn word(&self) -> &'static str {
        match self {
            EventKind::Raised { condition } => condition.as_str(),
            kind => kind.into(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub at: Timestamp,
    pub node: Option<NodeId>,
    pub session: Option<BootSessionId>,
    /// Caller or component that caused the event.
    pub actor: Actor,
    /// Kind of the event, with its details.
    pub kind: EventKind,
    /// Detail for people; never a secret.
    pub detail: String,
    /// Order that caused the event, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<AuditContext>,
    /// Number of occurrences: repeated events above the source's rate limit are combined.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub count: u32,
    /// Time of the first combined occurrence; `None` for a single occurrence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_at: Option<Timestamp>,
    /// The node was not approved; events of unapproved nodes are retained separately.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unknown: bool,
}

/// The count of a single occurrence.
pub(super) fn once() -> u32 {
    1
}

/// Returns true for a single occurrence.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
pub(super) fn is_once(count: &u32) -> bool {
    *count == 1
}

impl Event {
    /// Creates an event of an actor or order.
    pub fn new(
        at: Timestamp,
        cause: impl Into<Cause>,
        kind: EventKind,
        detail: impl Into<String>,
    ) -> Self {
        let Cause { actor, by } = cause.into();
        let detail = detail.into();
        Event {
            at,
            node: None,
            session: None,
            actor,
            kind,
            detail,
            by,
            count: 1,
            first_at: None,
            is_unknown: false,
        }
    }

    /// Truncates the detail to [`MAX_EVENT_DETAIL`].
    pub fn bound_detail(&mut self) {
        if let Some((end, _)) = self.detail.char_indices().nth(MAX_EVENT_DETAIL) {
            self.detail.truncate(end);
        }
    }

    pub fn of_node(mut self, node: impl Into<Option<NodeId>>) -> Self {
        self.node = node.into();
        self
    }

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
