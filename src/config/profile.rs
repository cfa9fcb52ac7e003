//! Profiles after inheritance, and groups.

use super::VfioSelector;
use meshd_proto::{CheckPolicy, DiskIdentity, stage1::RootMode, vm::ByteSize};
use meshd_types::{
    BundleName, GroupName, Hostlist, ImageName, NodeId, NodePattern, OverlayName, ProfileName,
    VarValue, Vars, matches_glob,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A profile with inherited values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    pub name: ProfileName,
    /// The profile that it extends.
    pub extends: Option<ProfileName>,
    /// Image that its nodes boot.
    pub image: ImageName,
    /// In order, those of parents first. Later overlays take precedence.
    pub overlays: Vec<OverlayName>,
    /// Kernel arguments including those of `hugepages`, those of parents first.
    pub kernel_args: Vec<String>,
    pub hugepages: Option<Hugepages>,
    /// Maximum size of the writable layer over an image of kind `root`; `None` for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writable: Option<ByteSize>,
    /// Where nodes keep the root of an image of kind `root`.
    #[serde(default, skip_serializing_if = "RootMode::is_ram")]
    pub root_mode: RootMode,
    /// Whether `node reboot --warm` may start its kernel without the firmware.
    #[serde(default, skip_serializing_if = "WarmPolicy::is_never")]
    pub warm: WarmPolicy,
    /// Packages besides those of the overlays, those of parents first.
    pub packages: Vec<String>,
    /// Those of parents first.
    pub bundles: Vec<BundleName>,
    /// PCI devices for VMs.
    pub vfio: Vec<VfioSelector>,
    /// Disks that are neither assigned to VMs nor formatted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_disks: Vec<DiskIdentity>,
    /// Variables; those of the most derived profile take precedence.
    pub vars: Vars,
    pub checks: CheckPolicy,
    /// Origin of every value. Not stored, because it has no effect.
    #[serde(skip)]
    pub settings: Vec<Setting>,
}

impl Profile {
    /// Makes a profile with an image only.
    pub fn new(name: ProfileName, image: ImageName) -> Self {
        Profile {
            name,
            extends: None,
            image,
            overlays: Vec::new(),
            kernel_args: Vec::new(),
            hugepages: None,
            writable: None,
            root_mode: RootMode::Ram,
            warm: WarmPolicy::Never,
            packages: Vec::new(),
            bundles: Vec::new(),
            vfio: Vec::new(),
            data_disks: Vec::new(),
            vars: Vars::new(),
            checks: CheckPolicy::default(),
            settings: Vec::new(),
        }
    }

    /// Returns the first key by which `next` changes the resources for VMs.
    pub fn changed_vm_resource(&self, next: &Profile) -> Option<&'static str> {
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

/// Whether nodes may start a profile by kexec, from the kernel that they run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarmPolicy {
    /// Each boot goes through the firmware.
    #[default]
    Never,
    Allow,
}

impl WarmPolicy {
    /// Each policy with its word.
    pub const WORDS: [(&str, WarmPolicy); 2] =
        [("never", WarmPolicy::Never), ("allow", WarmPolicy::Allow)];

    /// Returns true for the default.
    pub fn is_never(&self) -> bool {
        *self == WarmPolicy::Never
    }

    pub fn as_str(self) -> &'static str {
        match self {
            WarmPolicy::Never => "never",
            WarmPolicy::Allow => "allow",
        }
    }
}

impl fmt::Display for WarmPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A value of a resolved profile and its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Key in `site.toml`: `image`, `vars.slots`. Each element of a list is a setting.
    pub key: String,
    pub value: VarValue,
    /// The profile that set it.
    pub by: ProfileName,
    /// The profile that removed it; it has no effect then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_by: Option<ProfileName>,
    /// Line in `site.toml` from 1, for faults; 0 if unknown. Not stored.
    #[serde(skip)]
    pub line: usize,
}

/// `hugepages`: memory that the kernel reserves in huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hugepages {
    pub size: PageSize,
    pub count: u32,
}

/// Size of a huge page.
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
    /// Returns the total size in bytes.
    pub fn bytes(self) -> u64 {
        let page: u64 = match self.size {
            PageSize::G1 => 1 << 30,
            PageSize::M2 => 2 << 20,
        };
        page.saturating_mul(self.count.into())
    }

    /// Returns the kernel arguments.
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

/// Nodes that share overlays and variables; templates can list the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub name: GroupName,
    /// Members by ID, ordered by ID.
    pub nodes: Vec<NodeId>,
    /// Members by name. The names are complete.
    pub hostlists: Vec<Hostlist>,
    /// Overlays after those of the profile, in order.
    pub overlays: Vec<OverlayName>,
    /// Variables; they take precedence over those of the profile and of earlier groups.
    pub vars: Vars,
}

impl Group {
    /// Returns true if the group lists a node, by one of its IDs or by its name.
    pub fn lists(&self, ids: impl IntoIterator<Item = NodeId>, name: Option<&str>) -> bool {
        ids.into_iter().any(|id| self.nodes.contains(&id))
            || name.is_some_and(|name| self.names(name))
    }

    /// Returns true if the group lists this name.
    pub fn names(&self, name: &str) -> bool {
        self.hostlists.iter().flat_map(Hostlist::patterns).any(|pattern| match pattern {
            NodePattern::Word(text) | NodePattern::Name(text) => text == name,
            NodePattern::Glob(glob) => matches_glob(glob, name),
        })
    }
}
