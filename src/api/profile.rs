//! A profile and its settings in JSON.

use meshd_config::{Profile, Setting, Site};
use meshd_proto::CheckPolicy;
use meshd_types::{BundleName, ImageName, OverlayName, ProfileName, VarName, VarValue};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A profile with its inherited values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileView {
    pub name: ProfileName,
    /// True for the default profile, which unknown nodes boot.
    pub default: bool,
    /// Parent profile whose values this profile inherits.
    pub extends: Option<ProfileName>,
    pub image: ImageName,
    /// Overlays in the order of application; a later overlay replaces files of an earlier one.
    pub overlays: Vec<OverlayName>,
    pub kernel_args: Vec<String>,
    /// Packages in addition to those of the overlays.
    pub packages: Vec<String>,
    /// Bundles with software that Alpine's packages do not provide.
    #[serde(default)]
    pub bundles: Vec<BundleName>,
    /// Selectors of the PCI devices that VMs receive.
    pub vfio: Vec<String>,
    /// Disks that no VM ever receives.
    #[serde(default)]
    pub data_disks: Vec<String>,
    /// Values of overlay variables.
    #[serde(default)]
    pub vars: BTreeMap<VarName, VarValue>,
    /// Checks that are disabled or only warn, and the expected values of checks.
    #[serde(default)]
    pub checks: CheckPolicy,
}

impl ProfileView {
    /// Creates the view of a profile.
    pub fn new(profile: &Profile, site: &Site) -> Self {
        ProfileView {
            name: profile.name.clone(),
            default: profile.name == site.default_profile,
            extends: profile.extends.clone(),
            image: profile.image.clone(),
            overlays: profile.overlays.clone(),
            kernel_args: profile.kernel_args.clone(),
            packages: profile.packages.clone(),
            bundles: profile.bundles.clone(),
            vfio: profile.vfio.iter().map(ToString::to_string).collect(),
            data_disks: profile.data_disks.iter().map(ToString::to_string).collect(),
            vars: profile.vars.clone(),
            checks: profile.checks.clone(),
        }
    }
}

/// A value of a profile and the profile that set it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SettingView {
    /// Key in `site.toml`, such as `image` or `vars.slots`. Each element of a list is a separate
    /// setting.
    pub key: String,
    pub value: VarValue,
    /// Profile that set the value.
    pub by: ProfileName,
    /// Profile that removed the value. A removed value has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_by: Option<ProfileName>,
}

impl From<Setting> for SettingView {
    fn from(setting: Setting) -> Self {
        let Setting { key, value, by, removed_by, .. } = setting;
        SettingView { key, value, by, removed_by }
    }
}
