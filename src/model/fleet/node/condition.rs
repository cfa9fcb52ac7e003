//! Conditions: faults of a node, independent of its phase.

use meshd_types::Timestamp;
use serde::{Deserialize, Serialize};

/// All conditions. An unknown one in the store is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ConditionKind {
    /// Another machine claims this node's ID.
    IdCollision,
    /// Serial, board or NIC differ from the stored fingerprint.
    HardwareChanged,
    /// The ID rests on a MAC address alone.
    WeakIdentity,
    /// A boot stopped at a stage for longer than that stage may take.
    BootStalled,
    /// The same failure several times in a row.
    BootLoop,
    /// Booted, but its overlay was never fetched.
    OverlayMissing,
    /// The node runs another generation than it would boot now.
    RebootRequired,
    /// The node runs an unknown generation.
    Drift,
    /// Its units differ from the approved ones.
    UnitDrift,
    /// A spent capability or token was used again.
    CapabilityReplayed,
    /// Its authority, or that of its certificate, is no longer trusted.
    StaleCa,
    /// Another machine requested this node's boot outside of its session.
    BootImpersonated,
    /// A relay reports another switch port than at enrolment.
    RelayPortChanged,
    /// A certificate was replaced while the node was online, without an ordered reboot.
    CertificateReplaced,
    /// A readiness check fails.
    CheckFailed,
    /// The image of its profile cannot be served.
    ImageMissing,
    /// Its overlays cannot be rendered.
    RenderFailed,
    /// Its agent uses the previous protocol version.
    AgentOutdated,
}

impl ConditionKind {
    /// All kinds.
    pub const ALL: [ConditionKind; 18] = [
        ConditionKind::IdCollision,
        ConditionKind::HardwareChanged,
        ConditionKind::WeakIdentity,
        ConditionKind::BootStalled,
        ConditionKind::BootLoop,
        ConditionKind::OverlayMissing,
        ConditionKind::RebootRequired,
        ConditionKind::Drift,
        ConditionKind::UnitDrift,
        ConditionKind::CapabilityReplayed,
        ConditionKind::StaleCa,
        ConditionKind::BootImpersonated,
        ConditionKind::RelayPortChanged,
        ConditionKind::CertificateReplaced,
        ConditionKind::CheckFailed,
        ConditionKind::ImageMissing,
        ConditionKind::RenderFailed,
        ConditionKind::AgentOutdated,
    ];

    /// Alarms: signs of an attack. Only an operator clears them, because an attacker could cause anything else.
    pub const ALARMS: [ConditionKind; 4] = [
        ConditionKind::CapabilityReplayed,
        ConditionKind::BootImpersonated,
        ConditionKind::RelayPortChanged,
        ConditionKind::CertificateReplaced,
    ];

    /// Returns the word that is stored and shown.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A condition of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Kind of the fault.
    pub kind: ConditionKind,
    /// Raised at.
    pub since: Timestamp,
    /// Detail for people.
    pub detail: String,
}
