//! Decides which kernel, initrds and arguments a node boots with.

use super::{Endpoint, Refusal, ScriptRequest, kernel_args::check_args};
use crate::fleet::{Condition, ConditionKind, Node, Phase};
use meshd_config::{Delivery, Edit, Profile, Site, Transport, edit_args};
use meshd_types::{Arch, BootSessionId, Digest, ImageName, NodeId, ProfileName, Secret};
use std::borrow::Cow;

/// The parts of a built image, by digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageParts {
    /// What it is built for.
    pub arch: Arch,
    /// The Linux kernel.
    pub kernel: Digest,
    /// Alpine's initramfs.
    pub initramfs: Digest,
    /// The package repository, one more initrd.
    pub packages: Digest,
    /// Kernel modules as a squashfs, fetched by the running node.
    pub modloop: Digest,
}

/// What a node boots: all of it public, and the same at each boot of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootContents {
    /// What the node will be.
    pub profile: ProfileName,
    pub image: ImageName,
    /// Parts of the image.
    pub parts: ImageParts,
    /// [`kernel_args`].
    pub args: Vec<String>,
}

/// A node shall boot a profile that the site does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("profile {profile} is {by} and no longer in site.toml; {next}")]
pub struct NoProfile {
    /// Name of the profile.
    pub profile: ProfileName,
    by: &'static str,
    next: String,
}

/// Everything that the decision rests on.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    pub site: &'a Site,
    /// What this node boots.
    pub what: &'a BootContents,
    /// Who asks, already told apart from everyone else.
    pub node: &'a Node,
    /// The power-on that this script is for.
    pub session: BootSessionId,
    /// Where this node reaches the boot plane.
    pub endpoint: Endpoint,
    pub request: &'a ScriptRequest,
    /// What the overlay of this boot is fetched with, once.
    pub capability: &'a Secret<String>,
}

/// What iPXE shall do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootPlan {
    /// Whose boot this is.
    pub node: NodeId,
    /// What the node will be.
    pub profile: ProfileName,
    /// The power-on that this plan is for.
    pub session: BootSessionId,
    /// What is the same at each boot of this image.
    pub fetches: Fetches,
    /// Where the overlay is, and how it travels.
    pub overlay: OverlayUrl,
    /// The kernel's arguments, but for `initrd=` and `apkovl=`, in order.
    pub args: Vec<String>,
    /// Where to ask again.
    pub entry: String,
}

/// URLs of what the loader fetches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetches {
    pub kernel: String,
    /// Alpine's initramfs.
    pub initramfs: String,
    /// The package repository.
    pub packages: String,
}

/// How the overlay reaches the node. The URL is good for one transfer, so it prints as a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverlayUrl {
    /// As one more initrd: the running node sees a name only.
    Initrd(Secret<String>),
    /// `apkovl=URL`, in sight of everyone on the node.
    Argument(Secret<String>),
}

/// The profile that a node boots time after time: the one that an operator assigned, else the site's default.
///
/// An assigned profile that the site no longer has gives the default here; [`choose`] refuses such a node instead.
pub fn effective_profile<'a>(site: &'a Site, node: &Node) -> &'a Profile {
    let assigned = node.profile.as_ref().and_then(|name| site.profiles.get(name));
    assigned.unwrap_or_else(|| site.profiles.get(&site.default_profile).expect("a valid site has its default profile"))
}

/// The profile that a node boots in a session, or next where none is named: with what an operator ordered for one boot only.
///
/// # Errors
/// The site has no such profile. Booting the default in its place would look well and do the wrong task.
pub fn choose<'a>(site: &'a Site, node: &Node, session: Option<BootSessionId>) -> Result<Cow<'a, Profile>, NoProfile> {
    let once = node.once.as_ref().filter(|once| once.is_for(session));
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
    admitted(node)?;
    let image = fitting_image(ask)?;
    let http = |digest: Digest, part: &str| format!("{}/blob/{digest}/{part}", endpoint.http());
    // Overlay and modloop stay on HTTP: a capability is spent by the last byte of a transfer to one address, which TFTP
    // cannot promise, and the modloop is fetched by a running node that has HTTP anyway.
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

fn admitted(node: &Node) -> Result<(), Refusal> {
    match node.phase {
        Phase::Rejected => Err(Refusal::Rejected),
        Phase::Quarantined => {
            let is = |kind| move |condition: &&Condition| condition.kind == kind;
            let why = node.conditions.iter().find(is(ConditionKind::BootLoop));
            let worst = why.or_else(|| node.conditions.iter().find(|it| !is(ConditionKind::WeakIdentity)(it)));
            let detail = worst.map(|condition| format!("{}: {}", condition.kind.as_str(), condition.detail));
            Err(Refusal::Quarantined { detail: node.held_because.clone().or(detail).unwrap_or_default() })
        }
        // Removed machines are discovered anew before this step; every other phase boots, the unknown ones without a token.
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
    // The script is the one place that the capability is written to.
    let base = format!("{}/overlay/{}", ask.endpoint.http(), ask.capability.expose());
    match ask.site.boot.delivery {
        Delivery::Initrd => OverlayUrl::Initrd(Secret::new(format!("{base}/overlay.cpio.gz"))),
        Delivery::Url => OverlayUrl::Argument(Secret::new(format!("{base}/apkovl.tar.gz"))),
    }
}
