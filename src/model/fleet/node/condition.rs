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

    /// Returns the condition in plain words, for people. Orders and filters take
    /// [`ConditionKind::as_str`].
    pub const fn words(self) -> &'static str {
        match self {
            ConditionKind::IdCollision => "another machine claims its ID",
            ConditionKind::HardwareChanged => "its hardware has changed",
            ConditionKind::WeakIdentity => "recognised by a MAC address alone",
            ConditionKind::BootStalled => "its boot has stalled",
            ConditionKind::BootLoop => "boots again and again",
            ConditionKind::OverlayMissing => "booted without its overlay",
            ConditionKind::RebootRequired => "needs a reboot",
            ConditionKind::Drift => "runs an unknown generation",
            ConditionKind::UnitDrift => "its units differ from the approved ones",
            ConditionKind::CapabilityReplayed => "its overlay was requested twice",
            ConditionKind::StaleCa => "trusts an old certificate authority",
            ConditionKind::BootImpersonated => "another machine posed as it",
            ConditionKind::RelayPortChanged => "seen at another switch port",
            ConditionKind::CertificateReplaced => "enrolled again without a reboot",
            ConditionKind::CheckFailed => "a readiness check fails",
            ConditionKind::ImageMissing => "its image cannot be served",
            ConditionKind::RenderFailed => "its overlays cannot be rendered",
            ConditionKind::AgentOutdated => "its agent is of an older version",
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn conditions_have_distinct_plain_words() {
        let words: BTreeSet<_> = ConditionKind::ALL.into_iter().map(ConditionKind::words).collect();
        assert_eq!(words.len(), ConditionKind::ALL.len());
        assert!(words.iter().all(|words| words.contains(' ') && !words.contains('_')), "{words:?}");
    }
}
