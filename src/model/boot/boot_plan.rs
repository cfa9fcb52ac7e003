//! The plan of one boot, without the syntax of a loader.

use crate::image_kind::{ImageKind, PartUse};
use meshd_config::Delivery;
use meshd_proto::{stage1::RootMode, vm::ByteSize};
use meshd_types::{Architecture, BootSessionId, Digest, ImageName, NodeId, ProfileName, Secret};

/// The public contents of a boot, the same for each boot of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootContents {
    pub profile: ProfileName,
    pub image: ImageName,
    pub architecture: Architecture,
    pub kind: ImageKind,
    /// Kernel arguments of site and profile, from [`profile_args`](super::profile_args).
    pub args: Vec<String>,
    /// Size of the writable layer over a root; `None` for the default.
    pub writable: Option<ByteSize>,
    /// Where the node keeps a root.
    pub root_mode: RootMode,
}

/// What a machine boots, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootPlan {
    pub public: PublicPlan,
    pub secret: BootSecret,
}

/// The part of a plan that two boots of one generation have in common, if node, NIC and central
/// address stay. Everything that a loader measures can be computed from it, except the script
/// itself, and the URL of an overlay that is delivered by URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicPlan {
    pub node: NodeId,
    pub profile: ProfileName,
    pub kind: ImageKind,
    /// All parts, in boot order.
    pub parts: Vec<PlannedPart>,
    /// Kernel arguments of image kind, site and profile, without those of loader and overlay.
    pub args: Vec<String>,
    /// Who fetches the overlay.
    pub delivery: Delivery,
    /// URL for retries.
    pub entry: String,
}

/// A part of the image, with the URL for the program that loads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPart {
    pub name: &'static str,
    pub digest: Digest,
    pub usage: PartUse,
    pub url: String,
    /// In bytes.
    pub size: u64,
}

/// The part of a plan that differs at each boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootSecret {
    pub session: BootSessionId,
    /// URL of the overlay, with its single-use capability.
    pub overlay: Secret<String>,
}

impl PublicPlan {
    /// Returns the kernel.
    pub fn kernel(&self) -> &PlannedPart {
        self.parts
            .iter()
            .find(|part| part.usage == PartUse::Kernel)
            .expect("each kind of image has a kernel")
    }

    /// Returns the initrds in order, without the overlay.
    pub fn initrds(&self) -> impl Iterator<Item = &PlannedPart> {
        self.parts.iter().filter(|part| part.usage == PartUse::Initrd)
    }
}
