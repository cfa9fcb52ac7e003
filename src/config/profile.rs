//! Profiles after inheritance, and groups.

use super::VfioSelector;
use meshd_proto::{CheckPolicy, vm::DiskIdentity};
use meshd_types::{BundleName, GroupName, ImageName, NodeId, OverlayName, ProfileName, VarValue, Vars};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a node shall be, with everything inherited already in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    pub name: ProfileName,
    /// The profile that it extends.
    pub extends: Option<ProfileName>,
    /// Kernel, initramfs, modloop and packages.
    pub image: ImageName,
    /// In order, parents' first; a later one wins.
    pub overlays: Vec<OverlayName>,
    /// Kernel arguments, parents' first; those of `hugepages` are among them.
    pub kernel_args: Vec<String>,
    /// Memory set aside in large pages.
    pub hugepages: Option<Hugepages>,
    /// Packages beside those of the overlays, parents' first.
    pub packages: Vec<String>,
    /// Software that Alpine's packages do not bring, parents' first.
    pub bundles: Vec<BundleName>,
    /// PCI devices to hand to virtual machines.
    pub vfio: Vec<VfioSelector>,
    /// Disks that no virtual machine gets and nothing formats.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_disks: Vec<DiskIdentity>,
    /// Variables of its overlays, the nearest profile's winning.
    pub vars: Vars,
    /// Readiness checks that are off or only warn, and what they compare with.
    pub checks: CheckPolicy,
    /// Every value of the above, and who set it. It determines nothing, so it is not kept.
    #[serde(skip)]
    pub settings: Vec<Setting>,
}

impl Profile {
    /// A profile of an image and nothing else.
    pub fn new(name: ProfileName, image: ImageName) -> Self {
        Profile {
            name,
            extends: None,
            image,
            overlays: Vec::new(),
            kernel_args: Vec::new(),
            hugepages: None,
            packages: Vec::new(),
            bundles: Vec::new(),
            vfio: Vec::new(),
            data_disks: Vec::new(),
            vars: Vars::new(),
            checks: CheckPolicy::default(),
            settings: Vec::new(),
        }
    }

    /// Names the first key by which a node that boots `next` in place of this profile no longer hosts its virtual machines the same way.
    /// Other keys change what a node boots, not what it gives to machines.
    pub fn hosts_otherwise(&self, next: &Profile) -> Option<&'static str> {
        let lost_bundle = self.bundles.iter().any(|bundle| !next.bundles.contains(bundle));
        let keys = [
            ("vfio.devices", self.vfio != next.vfio),
            ("hugepages", self.hugepages != next.hugepages),
            ("data_disks", self.data_disks != next.data_disks),
            ("bundles", lost_bundle),
        ];
        keys.into_iter().find_map(|(key, differs)| differs.then_some(key))
    }
}

/// One value of a profile with everything inherited, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Its key as `site.toml` has it: `image`, `vars.slots`. Each element of a list is a setting.
    pub key: String,
    pub value: VarValue,
    /// The profile that set it.
    pub by: ProfileName,
    /// The profile that took it away again; it has no effect then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_by: Option<ProfileName>,
    /// Where that profile says so in `site.toml`, from 1; 0 where it is not known. For faults; it is not kept.
    #[serde(skip)]
    pub line: usize,
}

/// `hugepages`: memory that the kernel sets aside in large pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hugepages {
    /// Size of one page.
    pub size: PageSize,
    pub count: u32,
}

/// Size of a large page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PageSize {
    /// 1 GiB.
    #[serde(rename = "1G")]
    G1,
    /// 2 MiB.
    #[serde(rename = "2M")]
    M2,
}

impl Hugepages {
    /// All of them, in bytes.
    pub fn bytes(self) -> u64 {
        let one: u64 = match self.size {
            PageSize::G1 => 1 << 30,
            PageSize::M2 => 2 << 20,
        };
        one.saturating_mul(self.count.into())
    }

    /// As the kernel is told.
    pub fn kernel_args(self) -> [String; 2] {
        [format!("hugepagesz={}", self.size), format!("hugepages={}", self.count)]
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PageSize::G1 => "1G",
            PageSize::M2 => "2M",
        })
    }
}

impl fmt::Display for Hugepages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.count, self.size)
    }
}

/// Nodes that share overlays and variables, and know of each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub name: GroupName,
    /// Its members, in the order of their IDs.
    pub nodes: Vec<NodeId>,
    /// Overlays after those of the profile, in order.
    pub overlays: Vec<OverlayName>,
    /// Variables: they win over those of the profile, and of groups that are listed before.
    pub vars: Vars,
}
