//! Decides which kernel, initrds and arguments a node boots with.

use super::{Endpoint, Refusal, ScriptRequest, quote};
use crate::fleet::{Condition, ConditionKind, Node, Phase};
use meshd_config::{Delivery, Edit, Profile, Site, Transport, arg_key, edit_args};
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
pub struct What {
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
pub struct Ask<'a> {
    pub site: &'a Site,
    /// What this node boots.
    pub what: &'a What,
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

/// The longest kernel command line on x86 without its final NUL (COMMAND_LINE_SIZE, 2048); the kernel cuts off the rest silently.
const MAX_COMMAND_LINE: usize = 2047;

/// Arguments that the boot chain itself stands on.
const RESERVED: [&str; 8] = ["initrd", "apkovl", "alpine_repo", "modloop", "ip", "BOOTIF", "init", "rdinit"];

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
/// The site has no such profile. Booting the default in its place would look well and do the wrong job.
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

/// The arguments that site and profile decide, in order: the same at every boot, hence part of the generation. A profile's argument
/// takes the place of a default with the same key.
pub fn kernel_args(site: &Site, profile: &Profile, arch: Arch) -> Vec<String> {
    let mut defaults = vec!["panic=10"];
    if !profile.vfio.is_empty() {
        defaults.extend(iommu_args(arch));
    }
    defaults.retain(|default| profile.kernel_args.iter().all(|arg| arg_key(arg) != arg_key(default)));
    let mut args: Vec<String> = defaults.into_iter().map(str::to_owned).collect();
    args.extend(site.boot.consoles.iter().map(|console| format!("console={console}")));
    args.extend(profile.kernel_args.iter().cloned());
    args
}

/// What VFIO needs of the kernel. Each architecture has its own: x86's mean nothing to the others.
fn iommu_args(arch: Arch) -> &'static [&'static str] {
    match arch {
        // Always both: AMD's IOMMU is on by default and ignores the first.
        Arch::X86_64 => &["intel_iommu=on", "iommu=pt"],
        // A kernel may be built to let devices pass the SMMU by.
        Arch::Aarch64 => &[ARM_TRANSLATED],
        Arch::Riscv64 => &[],
    }
}

/// ARM's devices go through the SMMU; with `=1` they would reach all of the node's memory.
const ARM_TRANSLATED: &str = "iommu.passthrough=0";

/// Decides what a node boots.
pub fn decide(ask: &Ask<'_>) -> Result<BootPlan, Refusal> {
    let Ask { site, what, node, endpoint, .. } = *ask;
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

fn fitting_image<'a>(ask: &Ask<'a>) -> Result<&'a ImageParts, Refusal> {
    let parts = &ask.what.parts;
    match ask.request.arch {
        Some(machine) if machine != parts.arch => {
            Err(Refusal::ArchMismatch { image: ask.what.image.clone(), built_for: parts.arch, machine })
        }
        _ => Ok(parts),
    }
}

fn overlay_url(ask: &Ask<'_>) -> OverlayUrl {
    // The script is the one place that the capability is written to.
    let base = format!("{}/overlay/{}", ask.endpoint.http(), ask.capability.expose());
    match ask.site.boot.delivery {
        Delivery::Initrd => OverlayUrl::Initrd(Secret::new(format!("{base}/overlay.cpio.gz"))),
        Delivery::Url => OverlayUrl::Argument(Secret::new(format!("{base}/apkovl.tar.gz"))),
    }
}

fn check_args(what: &What, chain: &[String]) -> Result<(), Refusal> {
    let refuse = |detail: String| Err(Refusal::RenderFailed { detail });
    let name = &what.profile;
    if let Some(arg) = what.args.iter().find(|arg| RESERVED.contains(&arg_key(arg))) {
        let key = arg_key(arg);
        return refuse(format!("profile {name} sets the kernel argument {key}, which the boot chain needs itself"));
    }
    if let Some(arg) = chain.iter().chain(&what.args).find(|arg| quote::ipxe_word(arg).is_none()) {
        return refuse(format!("the kernel argument {arg} of profile {name} cannot be written into an iPXE script"));
    }
    let passthrough = |arg: &&String| arg_key(arg) == arg_key(ARM_TRANSLATED) && *arg != ARM_TRANSLATED;
    if let (Arch::Aarch64, Some(arg)) = (what.parts.arch, what.args.iter().find(passthrough)) {
        return refuse(format!("profile {name} sets {arg}, with which devices pass the SMMU by and reach all memory"));
    }
    // `initrd=` and `apkovl=` are still to come: 48 bytes, or some 100 when the overlay travels as a URL.
    let length = chain.iter().chain(&what.args).map(|arg| arg.len() + 1).sum::<usize>() + 160;
    if length > MAX_COMMAND_LINE {
        return refuse(format!("the kernel command line of profile {name} is longer than {MAX_COMMAND_LINE} bytes"));
    }
    Ok(())
}
