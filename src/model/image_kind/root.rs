//! The root kind: any Linux as one squashfs with dm-verity. Its initramfs has kernel modules only;
//! stage 1, the first program, comes with the overlay and fetches the root.

use super::{
    nic_drivers::NicDrivers,
    part::{Blob, ImagePart, PartUse},
    system::System,
};
use crate::fleet::Stage;
use meshd_proto::{
    stage1::{STAGE1_PROGRAM, VeritySpec},
    vm::ByteSize,
};
use meshd_types::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum size of the writable layer over a root, unless the profile has another one. It is memory
/// of the node.
pub const DEFAULT_WRITABLE: ByteSize = ByteSize::from_mib(512);
/// Parts that stage 1 fetches.
pub(super) const FETCHED_PARTS: [&str; 1] = ["root"];

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RootParts {
    pub kernel: Blob,
    /// Kernel modules and firmware for NICs and storage: a compressed cpio without a program.
    pub modules: Blob,
    /// Squashfs of the root, then its hash tree.
    pub root: Blob,
    pub verity: VeritySpec,
    /// The system of the root; absent in manifests of roots with systemd.
    #[serde(default, skip_serializing_if = "System::is_default")]
    pub system: System,
    /// Digests of the sources that the root was built from, by name.
    pub sources: BTreeMap<String, Digest>,
    /// NICs that `modules` has a driver for; absent in manifests of earlier releases.
    #[serde(default, skip_serializing_if = "NicDrivers::is_unknown")]
    pub nic_drivers: NicDrivers,
}

impl RootParts {
    pub(super) fn parts(&self) -> [ImagePart; 3] {
        let part = |name, blob, usage, stage| ImagePart { name, blob, usage, stage };
        [
            part("kernel", self.kernel, PartUse::Kernel, Stage::Kernel),
            part("modules", self.modules, PartUse::Initrd, Stage::Initramfs),
            part("root", self.root, PartUse::Fetched, Stage::Root),
        ]
    }
}

pub(super) fn kernel_args() -> Vec<String> {
    vec![format!("rdinit={STAGE1_PROGRAM}")]
}
