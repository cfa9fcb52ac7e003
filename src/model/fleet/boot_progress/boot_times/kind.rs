//! Kinds of delays.

use serde::{Deserialize, Serialize};

/// The kind of a delay.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[derive(utoipa::ToSchema)]
pub enum DelayKind {
    /// The first requests to the BMC had no effect.
    PowerAttempts,
    /// Another NIC of the machine tried first.
    OtherNic,
    /// The firmware tried another protocol first.
    OtherProtocol,
    /// The same NIC began to boot and stopped.
    RepeatedAttempt,
    /// The client asked before its first request arrived.
    LostDiscovers,
    /// The client asked before a relay forwarded its first request.
    SlowRelay,
    /// The client repeated DISCOVERs that meshd answered.
    RepeatedDiscovers,
    /// The boot queue deferred the boot.
    BootQueue,
    Approval,
    /// The node was online a moment ago, and the boot was not announced.
    RecentlyOnline,
    Refusal,
    /// iPXE started its script again.
    RepeatedScript,
    /// Alpine installed packages.
    PackageInstallation,
    /// A step took longer than in other boots.
    SlowStep,
}

as_str!(DelayKind);
