//! A profile and its settings in JSON.

use meshd_config::{Profile, Setting, Site};
use meshd_proto::CheckPolicy;
use meshd_types::{BundleName, ImageName, OverlayName, ProfileName, VarValue, Vars};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A profile with everything inherited in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileView {
    #[schema(value_type = String)]
    pub name: ProfileName,
    /// True for what unknown nodes boot.
    pub default: bool,
    /// The profile that it extends.
    #[schema(value_type = Option<String>)]
    pub extends: Option<ProfileName>,
    #[schema(value_type = String)]
    pub image: ImageName,
    /// Its overlays, a later one wins.
    #[schema(value_type = Vec<String>)]
    pub overlays: Vec<OverlayName>,
    /// Kernel arguments.
    pub kernel_args: Vec<String>,
    /// Packages beside those of the overlays.
    pub packages: Vec<String>,
    /// Software that Alpine's packages do not bring.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub bundles: Vec<BundleName>,
    /// PCI devices for virtual machines.
    pub vfio: Vec<String>,
    /// Disks that are never given away.
    #[serde(default)]
    pub data_disks: Vec<String>,
    /// Variables of its overlays.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub vars: Vars,
    /// Checks that are off or only warn, and what checks compare with.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub checks: CheckPolicy,
}

impl ProfileView {
    /// A profile of a site.
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

/// One value of a profile with the profile that set it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SettingView {
    /// Key in `site.toml`: `image`, `vars.slots`. Each element of a list is a setting.
    pub key: String,
    #[schema(value_type = Object)]
    pub value: VarValue,
    /// The profile that set it.
    #[schema(value_type = String)]
    pub by: ProfileName,
    /// The profile that removed it; then it has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub removed_by: Option<ProfileName>,
}

impl From<Setting> for SettingView {
    fn from(setting: Setting) -> Self {
        let Setting { key, value, by, removed_by, .. } = setting;
        SettingView { key, value, by, removed_by }
    }
}
