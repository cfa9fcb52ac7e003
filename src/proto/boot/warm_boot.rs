//! Warm reboot: the running agent fetches its next boot, and starts it by kexec.
//!
//! ```text
//! central  Action(WarmReboot) ──▶ agent, over the link
//!          ◀── POST WARM_BOOT_PATH   WarmBootRequest      ──▶ WarmBootAnswer: a plan without secrets, or why not
//!          ◀── GET  WARM_PARTS_PATH/DIGEST                ──▶ a range of a kernel or an initrd
//!          ◀── POST WARM_OVERLAY_PATH   WarmBootStep      ──▶ the overlay with its token, once
//!          ◀── POST WARM_REPORT_PATH    WarmBootReport    ──▶ 200: the boot session has begun
//! ```

use meshd_types::{BootSessionId, Digest};
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// Requests the plan of the next boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmBootRequest {
    /// [`crate::VERSION`].
    pub version: u16,
}

/// The answer to a [`WarmBootRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum WarmBootAnswer {
    Plan(WarmBootPlan),
    /// The boot queue is full: ask again.
    Wait {
        seconds: u32,
    },
    /// The node boots through its firmware.
    Cold {
        /// For the node's log.
        reason: String,
    },
}

/// What the node loads. It has no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmBootPlan {
    pub session: BootSessionId,
    pub kernel: WarmBootPart,
    /// In order; the overlay follows the last one.
    pub initrds: Vec<WarmBootPart>,
    pub command_line: String,
}

/// A part of the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmBootPart {
    pub name: String,
    pub digest: Digest,
    /// In bytes.
    pub size: u64,
}

/// Requests the overlay of a planned boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmBootStep {
    /// [`crate::VERSION`].
    pub version: u16,
    pub session: BootSessionId,
}

/// Kind of the reason for a boot through the firmware.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ColdBootCause {
    /// The profile of the next boot does not allow warm boots.
    NotAllowed,
    /// The site delivers overlays by URL.
    UrlDelivery,
    HardwareChanged,
    /// A kernel that was started warm did not come online.
    NotOnline,
    /// The boot queue is full.
    BootQueue,
    /// A device is bound to vfio-pci.
    VfioDevice,
    Memory,
    /// The running kernel does not load another one.
    KernelLoad,
    /// The node booted without a report, for example because its agent had restarted.
    NoReport,
    /// Any other reason, also that of an agent which names no cause.
    #[default]
    #[serde(other)]
    Other,
}

serialised_name!(ColdBootCause);

/// Reports that the kernel is loaded and starts, or why the node boots through its firmware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmBootReport {
    /// [`crate::VERSION`].
    pub version: u16,
    /// `None` before there was a plan.
    pub session: Option<BootSessionId>,
    /// `None`: the kernel is loaded.
    pub failure: Option<String>,
    /// Kind of the failure.
    #[serde(default)]
    pub cause: ColdBootCause,
}

/// Header of an overlay: the SHA-256 of its bytes.
pub const OVERLAY_DIGEST_HEADER: &str = "meshd-digest";
