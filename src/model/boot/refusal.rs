//! The reason why a machine does not boot now: code, message, and retry delay.

use crate::{
    fleet::{Phase, Wait},
    image_kind::PciId,
};
use meshd_types::{Architecture, ImageName, MacAddr, NodeId};

/// Reason why a machine does not boot. meshd answers with a script and records an event. The
/// refusal ends with its cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The NIC has no boot session: no DHCP exchange, an expired session, or a request from another
    /// address.
    NoSession,
    /// Neither UUID, serial nor MAC address identifies the machine.
    Unidentified,
    /// Another machine has this ID; `detail` describes both machines.
    Collision { detail: String },
    /// The NIC belongs to another node, which is rejected or quarantined.
    HeldNic { mac: MacAddr, node: NodeId, phase: Phase },
    /// An operator rejected the node.
    Rejected,
    /// The node is quarantined; the reason `detail` may be empty.
    Quarantined { detail: String },
    /// The image of the node's profile cannot be served.
    ImageMissing { image: ImageName, detail: String },
    /// The image is for another processor.
    ArchMismatch { image: ImageName, built_for: Architecture, machine: Architecture },
    /// The image has no driver for the NIC that the machine boots from: its first program could
    /// neither fetch the root nor report a failure.
    NicDriverMissing { image: ImageName, nic: PciId },
    /// The boot of the profile cannot be rendered.
    RenderFailed { detail: String },
    /// The maximum number of machines loads; this machine retries after `seconds`. Position 1 in
    /// the boot queue is next.
    Busy { seconds: u32, position: usize },
    /// The node was online a moment ago, and nobody announced its reboot: it may still run, and
    /// this machine may be another one. After `seconds` without a sign of life, it counts as down.
    RecentlyOnline { seconds: u32 },
    /// A fault of the central node; `detail` contains no secrets.
    Internal { detail: String },
    /// The request is not from the entry script.
    BadRequest { detail: String },
}

/// Maximum retry delay in seconds, bounded because an operator who repaired the cause waits for the
/// retry.
const MAX_WAIT_SECONDS: u32 = 300;
/// Maximum retry delay of a node that was online a moment ago. The boot session must stay fresh: it
/// records the wait.
const MAX_RECENT_SECONDS: u32 = 60;

impl Refusal {
    /// Returns the code for events and metrics: that of the condition if there is one.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::NoSession => "no_session",
            Refusal::Unidentified => "unidentified",
            Refusal::Collision { .. } => "id_collision",
            Refusal::HeldNic { .. } => "nic_held",
            Refusal::Rejected => "rejected",
            Refusal::Quarantined { .. } => "quarantined",
            Refusal::ImageMissing { .. } => "image_missing",
            Refusal::ArchMismatch { .. } => "arch_mismatch",
            Refusal::NicDriverMissing { .. } => "nic_driver_missing",
            Refusal::RenderFailed { .. } => "render_failed",
            Refusal::Busy { .. } => "busy",
            Refusal::RecentlyOnline { .. } => Wait::RECENTLY_ONLINE,
            Refusal::Internal { .. } => "internal",
            Refusal::BadRequest { .. } => "bad_request",
        }
    }

    /// Returns the message: the fault and its remedy.
    pub fn message(&self) -> String {
        match self {
            Refusal::NoSession => {
                "no boot session: this NIC asked for no address here in the last 5 minutes, or asks from \
                 another address than it was given. DHCP is done again now"
                    .to_owned()
            }
            Refusal::Unidentified => {
                "nothing identifies this machine. Set a system UUID or serial number in its firmware".to_owned()
            }
            Refusal::Collision { detail } => {
                format!(
                    "another machine has this node ID ({detail}). Set another UUID on one of them, or remove the old node. \
                     If this is that node with a new NIC: meshd node accept-nic"
                )
            }
            Refusal::HeldNic { mac, node, phase } => {
                let release = if *phase == Phase::Rejected { "approve" } else { "release" };
                format!(
                    "NIC {mac} belongs to node {node}, which is {phase}. Admit that node: meshd node {release} {node}. If the NIC \
                     is in another machine now: meshd node remove {node}"
                )
            }
            Refusal::Rejected => "an operator rejected this machine. Approve it: meshd node approve".to_owned(),
            Refusal::Quarantined { detail } if detail.is_empty() => {
                "this machine is quarantined. Release it: meshd node release".to_owned()
            }
            Refusal::Quarantined { detail } => {
                format!("this machine is quarantined: {detail}. Release it: meshd node release")
            }
            Refusal::ImageMissing { image, detail } => {
                format!("image {image} cannot be served: {detail}. Build it: meshd image build {image}")
            }
            Refusal::ArchMismatch { image, built_for, machine } => format!(
                "this machine is {machine} and image {image} is for {built_for}. Assign a profile with an image for {machine}"
            ),
            Refusal::NicDriverMissing { image, nic } => format!(
                "image {image} has no driver for NIC {nic} of this machine. Add the driver to [modules] keep of its recipe: \
                 meshd image build {image}"
            ),
            Refusal::RenderFailed { detail } => format!("the boot of this node cannot be rendered: {detail}"),
            Refusal::Busy { position, .. } => {
                format!("the boot queue is full. This machine has position {position}")
            }
            Refusal::RecentlyOnline { seconds } => format!(
                "this node was just online, and no reboot was ordered. It boots in {seconds} seconds, unless the running \
                 node answers"
            ),
            Refusal::Internal { detail } => {
                format!("the central node failed: {detail}. Its log has this correlation ID")
            }
            Refusal::BadRequest { detail } => format!("invalid boot request: {detail}"),
        }
    }

    /// Returns the retry delay in seconds, 1 to 300.
    pub fn wait_seconds(&self) -> u32 {
        match self {
            Refusal::NoSession => 2,
            Refusal::Internal { .. } => 10,
            Refusal::ImageMissing { .. }
            | Refusal::RenderFailed { .. }
            | Refusal::BadRequest { .. } => 20,
            Refusal::Unidentified
            | Refusal::Collision { .. }
            | Refusal::ArchMismatch { .. }
            | Refusal::NicDriverMissing { .. } => 30,
            Refusal::Rejected | Refusal::HeldNic { .. } => 60,
            // The delay is short, because the operator who releases the node waits for the retry.
            Refusal::Quarantined { .. } => 20,
            Refusal::Busy { seconds, .. } => (*seconds).clamp(1, MAX_WAIT_SECONDS),
            Refusal::RecentlyOnline { seconds } => (*seconds).clamp(1, MAX_RECENT_SECONDS),
        }
    }

    /// Returns true if the boot continues without an operator. Such a wait is no fault.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Refusal::Busy { .. } | Refusal::RecentlyOnline { .. })
    }
}
