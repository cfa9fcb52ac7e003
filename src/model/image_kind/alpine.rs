//! The Alpine kind: Alpine's initramfs installs packages from a repository and unpacks the overlay;
//! mesh-init mounts the modloop.

use super::{
    KernelArgInputs,
    part::{Blob, ImagePart, PartUse},
};
use crate::fleet::Stage;
use meshd_proto::mesh_init::MESH_INIT_PROGRAM;
use serde::{Deserialize, Serialize};

/// Parts that mesh-init fetches.
pub(super) const FETCHED_PARTS: [&str; 1] = ["modloop"];
/// Where the packages initrd unpacks its repository.
const PACKAGE_REPOSITORY: &str = "/packages";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlpineParts {
    pub kernel: Blob,
    /// Alpine's initramfs.
    pub initramfs: Blob,
    /// Squashfs with the kernel's modules.
    pub modloop: Blob,
    /// Signed package repository: a gzip-compressed cpio, loaded as an additional initrd.
    pub packages: Blob,
}

impl AlpineParts {
    pub(super) fn parts(&self) -> [ImagePart; 4] {
        let part = |name, blob, usage, stage| ImagePart { name, blob, usage, stage };
        [
            part("kernel", self.kernel, PartUse::Kernel, Stage::Kernel),
            part("initramfs", self.initramfs, PartUse::Initrd, Stage::Initramfs),
            part("packages", self.packages, PartUse::Initrd, Stage::Packages),
            part("modloop", self.modloop, PartUse::Fetched, Stage::Modloop),
        ]
    }

    pub(super) fn kernel_args(&self, inputs: &KernelArgInputs<'_>) -> Vec<String> {
        let [.., modloop] = self.parts();
        vec![
            format!("alpine_repo={PACKAGE_REPOSITORY}"),
            format!("modloop={}", (inputs.url)(&modloop)),
            "ip=dhcp".to_owned(),
            format!("BOOTIF={}", inputs.nic.bootif()),
            format!("init={MESH_INIT_PROGRAM}"),
        ]
    }
}

pub(super) fn overlay_arg(location: &str) -> String {
    format!("apkovl={location}")
}
