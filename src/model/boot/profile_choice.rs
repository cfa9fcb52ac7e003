//! The profile that a node boots: assigned, ordered for one boot, or the default of the site.

use crate::fleet::Node;
use meshd_config::{Edit, Profile, Site, edit_args};
use meshd_types::{BootSessionId, ProfileName};
use std::borrow::Cow;

/// The profile of a node is not in `site.toml`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("profile {profile} is {by} and no longer in site.toml; {next}")]
pub struct NoProfile {
    pub profile: ProfileName,
    by: &'static str,
    next: String,
}

meshd_types::hints!(NoProfile { NoProfile { next, .. } => "{next}"; });

/// Returns the assigned profile, else the default of the site. A missing assigned profile also
/// returns the default; [`choose`] refuses it.
pub fn effective_profile<'a>(site: &'a Site, node: &Node) -> &'a Profile {
    let assigned = node.profile.as_ref().and_then(|name| site.profiles.get(name));
    assigned.unwrap_or_else(|| {
        site.profiles.get(&site.default_profile).expect("a valid site has its default profile")
    })
}

/// Returns the profile for a session, or for the next boot, with the override of an operator. A
/// missing profile is an error, because booting the default instead would hide the fault.
pub fn choose<'a>(
    site: &'a Site,
    node: &Node,
    session: Option<BootSessionId>,
) -> Result<Cow<'a, Profile>, NoProfile> {
    let once = node.boot_override.as_ref().filter(|once| once.is_for(session));
    if let Some(name) = once
        .and_then(|once| once.profile.as_ref())
        .filter(|name| !site.profiles.contains_key(*name))
    {
        let next = format!("take it back: meshd node boot-once {} --clear", node.id);
        return Err(NoProfile { profile: name.clone(), by: "ordered for one boot", next });
    }
    let ordered = once.and_then(|once| site.profiles.get(once.profile.as_ref()?));
    if let (None, Some(name)) =
        (ordered, node.profile.as_ref().filter(|name| !site.profiles.contains_key(*name)))
    {
        let next = format!("assign another: meshd node assign-profile {} PROFILE", node.id);
        return Err(NoProfile { profile: name.clone(), by: "assigned", next });
    }
    let mut profile = Cow::Borrowed(ordered.unwrap_or_else(|| effective_profile(site, node)));
    if let Some(once) = once.filter(|once| !once.kernel_args.is_empty()) {
        let edits: Vec<Edit<String>> =
            once.kernel_args.iter().filter_map(|arg| arg.parse().ok()).collect();
        edit_args(&mut profile.to_mut().kernel_args, &edits);
    }
    Ok(profile)
}
