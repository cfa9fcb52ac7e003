//! Conditions: faults of a node, independent of its phase.

use meshd_types::Timestamp;
use serde::{Deserialize, Serialize};

/// Every condition there is. Closed: an unknown one in the store is an error, never ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// What the node runs is not what it would boot now.
    RebootRequired,
    /// The node runs something that no generation of it explains.
    Drift,
    /// Its units are not those that it was approved with.
    UnitDrift,
    /// A spent capability or token was used again.
    CapabilityReplayed,
    /// Its authority, or the one of its certificate, is not that of the site any more.
    StaleCa,
    /// Somebody asked for this node's boot from outside its boot session.
    BootImpersonated,
    /// A relay says that this node is plugged in elsewhere than when it enrolled.
    RelayPortChanged,
    /// A certificate was issued in place of that of a node that was online a moment before, without an order to reboot.
    CertificateReplaced,
    /// A readiness check fails.
    CheckFailed,
    /// The image of its profile cannot be served.
    ImageMissing,
    /// Its overlays cannot be rendered.
    RenderFailed,
    /// Its agent speaks the previous version of the wire.
    AgentOutdated,
}

impl ConditionKind {
    /// Every kind there is.
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

    /// Alarms: signs of an attack. Nothing but an operator clears one, because an attacker could cause everything else.
    pub const ALARMS: [ConditionKind; 4] = [
        ConditionKind::CapabilityReplayed,
        ConditionKind::BootImpersonated,
        ConditionKind::RelayPortChanged,
        ConditionKind::CertificateReplaced,
    ];

    /// The word that is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            ConditionKind::IdCollision => "id_collision",
            ConditionKind::HardwareChanged => "hardware_changed",
            ConditionKind::WeakIdentity => "weak_identity",
            ConditionKind::BootStalled => "boot_stalled",
            ConditionKind::BootLoop => "boot_loop",
            ConditionKind::OverlayMissing => "overlay_missing",
            ConditionKind::RebootRequired => "reboot_required",
            ConditionKind::Drift => "drift",
            ConditionKind::UnitDrift => "unit_drift",
            ConditionKind::CapabilityReplayed => "capability_replayed",
            ConditionKind::StaleCa => "stale_ca",
            ConditionKind::BootImpersonated => "boot_impersonated",
            ConditionKind::RelayPortChanged => "relay_port_changed",
            ConditionKind::CertificateReplaced => "certificate_replaced",
            ConditionKind::CheckFailed => "check_failed",
            ConditionKind::ImageMissing => "image_missing",
            ConditionKind::RenderFailed => "render_failed",
            ConditionKind::AgentOutdated => "agent_outdated",
        }
    }
}

/// One thing that is wrong, since when, and what was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Kind of the fault.
    pub kind: ConditionKind,
    /// Since when without a break.
    pub since: Timestamp,
    /// What was seen, for people.
    pub detail: String,
}
