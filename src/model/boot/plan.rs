//! Decides which kernel, initrds and arguments a node boots with.

use super::{Endpoint, Refusal, ScriptRequest, profile_kernel_args::check_args};
use crate::fleet::{Condition, ConditionKind, Node, Phase};
use meshd_config::{Delivery, Edit, Profile, Site, Transport, edit_args};
use meshd_types::{Arch, BootSessionId, Digest, ImageName, NodeId, ProfileName, Secret};
use std::borrow::Cow;

/// The parts of a built image, by digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageParts {
    pub arch: Arch,
    pub kernel: Digest,
    /// Alpine's initramfs.
    pub initramfs: Digest,
    /// Package repository, an additional initrd.
    pub packages: Digest,
    /// Kernel modules as a squashfs, which the running node fetches.
    pub modloop: Digest,
}

/// The public contents of a boot, the same for each boot of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootContents {
    pub profile: ProfileName,
    pub image: ImageName,
    pub parts: ImageParts,
    /// Kernel arguments of site and profile, from [`kernel_args`].
    pub args: Vec<String>,
}

/// The profile of a node is not in `site.toml`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("profile {profile} is {by} and no longer in site.toml; {next}")]
pub struct NoProfile {
    pub profile: ProfileName,
    by: &'static str,
    next: String,
}

meshd_types::hints!(NoProfile { NoProfile { next, .. } => "{next}"; });

/// The input of [`decide`].
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    pub site: &'a Site,
    pub what: &'a BootContents,
    /// The identified node.
    pub node: &'a Node,
    pub session: BootSessionId,
    /// Address of the boot API for this node.
    pub endpoint: Endpoint,
    pub request: &'a ScriptRequest,
    /// Single-use capability for the overlay.
    pub capability: &'a Secret<String>,
}

/// The content of a boot script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootPlan {
    pub node: NodeId,
    pub profile: ProfileName,
    pub session: BootSessionId,
    pub fetches: Fetches,
    pub overlay: OverlayUrl,
    /// Kernel arguments without `initrd=` and `apkovl=`.
    pub args: Vec<String>,
    /// URL for retries.
    pub entry: String,
}

/// URLs that the loader fetches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetches {
    pub kernel: String,
    pub initramfs: String,
    pub packages: String,
}

/// The delivery of the overlay. The URL contains a single-use capability, so it is secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverlayUrl {
    /// The loader fetches the overlay as an additional initrd; the running node sees only a name.
    Initrd(Secret<String>),
    /// `apkovl=URL`, visible to all users of the node.
    Argument(Secret<String>),
}

/// Returns the assigned profile, else the default of the site. A missing assigned profile also returns the default; [`choose`] refuses it.
pub fn effective_profile<'a>(site: &'a Site, node: &Node) -> &'a Profile {
    let assigned = node.profile.as_ref().and_then(|name| site.profiles.get(name));
    assigned.unwrap_or_else(|| site.profiles.get(&site.default_profile).expect("a valid site has its default profile"))
}

/// Returns the profile for a session, or for the next boot, with the override of an operator. A missing profile is an error, because
/// booting the default instead would hide the fault.
pub fn choose<'a>(site: &'a Site, node: &Node, session: Option<BootSessionId>) -> Result<Cow<'a, Profile>, NoProfile> {
    let once = node.boot_override.as_ref().filter(|once| once.is_for(session));
    if let Some(name) = once.and_then(|once| once.profile.as_ref()).filter(|name| !site.profiles.contains_key(*name)) {
        let next = format!("take it back: meshd node boot-once {} --clear", node.id);
        return Err(NoProfile { profile: name.clone(), by: "ordered for one boot", next });
    }
    let ordered = once.and_then(|once| site.profiles.get(once.profile.as_ref()?));
    if let (None, Some(name)) = (ordered, node.profile.as_ref().filter(|name| !site.profiles.contains_key(*name))) {
        let next = format!("assign another: meshd node assign-profile {} PROFILE", node.id);
        return Err(NoProfile { profile: name.clone(), by: "assigned", next });
    }
    let mut profile = Cow::Borrowed(ordered.unwrap_or_else(|| effective_profile(site, node)));
    if let Some(once) = once.filter(|once| !once.kernel_args.is_empty()) {
        let edits: Vec<Edit<String>> = once.kernel_args.iter().filter_map(|arg| arg.parse().ok()).collect();
        edit_args(&mut profile.to_mut().kernel_args, &edits);
    }
    Ok(profile)
}

/// Decides what a node boots.
pub fn decide(ask: &PlanRequest<'_>) -> Result<BootPlan, Refusal> {
    let PlanRequest { site, what, node, endpoint, .. } = *ask;
    require_bootable(node)?;
    let image = fitting_image(ask)?;
    let http = |digest: Digest, part: &str| format!("{}/blob/{digest}/{part}", endpoint.http());
    // Overlay and modloop always use HTTP. The last byte of a transfer to one address spends a capability, which TFTP cannot
    // guarantee. The running node fetches the modloop and has HTTP.
    let loaded = |digest: Digest, part: &str| match site.boot.kernel_transport {
        Transport::Http => http(digest, part),
        Transport::Tftp => format!("{}/blob/{digest}/{part}", endpoint.tftp()),
    };
    let mut args = vec![
        "alpine_repo=/packages".to_owned(),
        format!("modloop={}", http(image.modloop, "modloop")),
        "ip=dhcp".to_owned(),
        format!("BOOTIF={}", ask.request.mac.bootif()),
        "init=/sbin/mesh-init".to_owned(),
    ];
    check_args(what, &args)?;
    args.extend(what.args.iter().cloned());
    Ok(BootPlan {
        node: node.id,
        profile: what.profile.clone(),
        session: ask.session,
        fetches: Fetches {
            kernel: loaded(image.kernel, "kernel"),
            initramfs: loaded(image.initramfs, "initramfs"),
            packages: loaded(image.packages, "packages"),
        },
        overlay: overlay_url(ask),
        args,
        entry: endpoint.entry(),
    })
}

fn require_bootable(node: &Node) -> Result<(), Refusal> {
    match node.phase {
        Phase::Rejected => Err(Refusal::Rejected),
        Phase::Quarantined => {
            let is = |kind| move |condition: &&Condition| condition.kind == kind;
            let why = node.conditions.iter().find(is(ConditionKind::BootLoop));
            let worst = why.or_else(|| node.conditions.iter().find(|it| !is(ConditionKind::WeakIdentity)(it)));
            let detail = worst.map(|condition| format!("{}: {}", condition.kind.as_str(), condition.detail));
            Err(Refusal::Quarantined { detail: node.quarantine_reason.clone().or(detail).unwrap_or_default() })
        }
        // Removed machines are rediscovered before this step. All other phases boot; unapproved nodes boot without a token.
        _ => Ok(()),
    }
}

fn fitting_image<'a>(ask: &PlanRequest<'a>) -> Result<&'a ImageParts, Refusal> {
    let parts = &ask.what.parts;
    match ask.request.arch {
        Some(machine) if machine != parts.arch => {
            Err(Refusal::ArchMismatch { image: ask.what.image.clone(), built_for: parts.arch, machine })
        }
        _ => Ok(parts),
    }
}

fn overlay_url(ask: &PlanRequest<'_>) -> OverlayUrl {
    // The capability is exposed only to the script.
    let base = format!("{}/overlay/{}", ask.endpoint.http(), ask.capability.expose());
    match ask.site.boot.delivery {
        Delivery::Initrd => OverlayUrl::Initrd(Secret::new(format!("{base}/overlay.cpio.gz"))),
        Delivery::Url => OverlayUrl::Argument(Secret::new(format!("{base}/apkovl.tar.gz"))),
    }
}
