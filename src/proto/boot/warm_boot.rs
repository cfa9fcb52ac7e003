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

/// Reports that the kernel is loaded and starts, or why the node boots through its firmware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmBootReport {
    /// [`crate::VERSION`].
    pub version: u16,
    /// `None` before there was a plan.
    pub session: Option<BootSessionId>,
    /// `None`: the kernel is loaded.
    pub failure: Option<String>,
}

/// Header of an overlay: the SHA-256 of its bytes.
pub const OVERLAY_DIGEST_HEADER: &str = "meshd-digest";
