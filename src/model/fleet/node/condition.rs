//! Conditions: faults of a node, independent of its phase.

use meshd_types::Timestamp;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use strum::VariantArray as _;

/// All conditions. An unknown one in the store is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(utoipa::ToSchema, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ConditionKind {
    /// Another machine claims this node's ID.
    IdCollision,
    /// Serial, board or NIC differ from the stored fingerprint.
    HardwareChanged,
    /// The ID is derived from a MAC address alone.
    WeakIdentity,
    /// A boot exceeded the timeout of a stage.
    BootStalled,
    BootLoop,
    /// The node booted without fetching its overlay.
    OverlayMissing,
    /// The node runs another generation than it would boot now.
    RebootRequired,
    /// The node runs an unknown generation.
    Drift,
    /// The units of the node differ from the approved units.
    UnitDrift,
    /// A spent capability or token was used again.
    CapabilityReplayed,
    /// meshd no longer trusts the authority that the node trusts, or that issued its certificate.
    StaleCa,
    /// Another machine requested this node's boot script outside of the node's session.
    BootImpersonated,
    /// A relay reports another switch port than at enrolment.
    RelayPortChanged,
    /// A certificate was replaced while the node was online, without an ordered reboot.
    CertificateReplaced,
    CheckFailed,
    /// The image of the node's profile cannot be served.
    ImageMissing,
    /// The node's overlays cannot be rendered.
    RenderFailed,
    /// The node's agent uses the previous protocol version.
    AgentOutdated,
}

impl ConditionKind {
    pub const ALL: [ConditionKind; ConditionKind::VARIANTS.len()] =
        *ConditionKind::VARIANTS.first_chunk().expect("the same length");

    /// Alarms: signs of an attack. Only an operator clears them, because an attacker could cause
    /// any automatic clearing.
    pub const ALARMS: [ConditionKind; 4] = [
        ConditionKind::CapabilityReplayed,
        ConditionKind::BootImpersonated,
        ConditionKind::RelayPortChanged,
        ConditionKind::CertificateReplaced,
    ];
}

as_str!(ConditionKind);

impl FromStr for ConditionKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        known.ok_or_else(|| {
            let names = Self::ALL.map(ConditionKind::as_str).join(" ");
            format!("`{text}` is not a condition; known: {names}")
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Condition {
    pub kind: ConditionKind,
    /// Time at which the condition was raised.
    pub since: Timestamp,
    /// Description with names and numbers.
    pub detail: String,
}
