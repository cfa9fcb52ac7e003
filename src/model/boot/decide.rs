//! Decides what a node boots: admission, the image, and the plan.

use super::{
    boot_plan::{BootContents, BootPlan, BootSecret, PlannedPart, PublicPlan},
    endpoint::Endpoint,
    kernel_command_line::{check_length, check_profile_args, command_line},
    refusal::Refusal,
    request::ScriptRequest,
};
use crate::{
    fleet::{Condition, ConditionKind, Node, Phase},
    image_kind::{ImageKind, ImageKindName, ImagePart, KernelArgInputs, PartUse},
};
use meshd_config::{Delivery, Site, Transport};
use meshd_types::{BootSessionId, Secret};

/// The input of [`decide`].
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    pub site: &'a Site,
    pub contents: &'a BootContents,
    /// The identified node.
    pub node: &'a Node,
    pub session: BootSessionId,
    /// Address of the boot API for this node.
    pub endpoint: Endpoint,
    pub request: &'a ScriptRequest,
    /// Single-use capability for the overlay.
    pub capability: &'a Secret<String>,
}

/// Decides what a node boots.
pub fn decide(inputs: &PlanRequest<'_>) -> Result<BootPlan, Refusal> {
    let PlanRequest { contents, node, endpoint, request, .. } = *inputs;
    let render_failed = |detail| Refusal::RenderFailed { detail };
    require_bootable(node)?;
    check_architecture(inputs)?;
    check_nic_driver(inputs)?;
    check_delivery(inputs).map_err(render_failed)?;
    check_profile_args(contents).map_err(render_failed)?;
    let kind_args = contents
        .kind
        .kernel_args(&KernelArgInputs { nic: request.mac, url: &|part| part_url(inputs, part) });
    let args: Vec<String> = kind_args.into_iter().chain(contents.args.iter().cloned()).collect();
    if let Some(arg) = args.iter().find(|arg| !request.loader.is_word(arg)) {
        let detail = format!(
            "the kernel argument {arg} of profile {} cannot be written into a boot script",
            contents.profile
        );
        return Err(render_failed(detail));
    }
    let planned = |part: ImagePart| PlannedPart {
        name: part.name,
        digest: part.blob.digest,
        usage: part.usage,
        url: part_url(inputs, &part),
        size: part.blob.size,
    };
    let public = PublicPlan {
        node: node.id,
        profile: contents.profile.clone(),
        kind: contents.kind.clone(),
        parts: contents.kind.parts().into_iter().map(planned).collect(),
        args,
        delivery: inputs.site.boot.delivery,
        entry: endpoint.entry(),
    };
    let plan = BootPlan {
        public,
        secret: BootSecret { session: inputs.session, overlay: overlay_url(inputs) },
    };
    let line = command_line(&plan, &request.loader.kernel_args(&plan));
    check_length(contents, request.loader.line_prefix() + line.len()).map_err(render_failed)?;
    Ok(plan)
}

/// Returns the URL of a part. Parts that the running node fetches always use HTTP, which it has.
fn part_url(inputs: &PlanRequest<'_>, part: &ImagePart) -> String {
    let base = match (part.usage, inputs.site.boot.kernel_transport) {
        (PartUse::Kernel | PartUse::Initrd, Transport::Tftp) => inputs.endpoint.tftp(),
        (PartUse::Kernel | PartUse::Initrd, Transport::Http) | (PartUse::Fetched, _) => {
            inputs.endpoint.http()
        }
    };
    format!("{base}/blob/{}/{}", part.blob.digest, part.name)
}

fn require_bootable(node: &Node) -> Result<(), Refusal> {
    match node.phase {
        Phase::Rejected => Err(Refusal::Rejected),
        Phase::Quarantined => {
            let is = |kind| move |condition: &&Condition| condition.kind == kind;
            let why = node.conditions.iter().find(is(ConditionKind::BootLoop));
            let worst = why
                .or_else(|| node.conditions.iter().find(|it| !is(ConditionKind::WeakIdentity)(it)));
            let detail =
                worst.map(|condition| format!("{}: {}", condition.kind.as_str(), condition.detail));
            Err(Refusal::Quarantined {
                detail: node.quarantine_reason.clone().or(detail).unwrap_or_default(),
            })
        }
        // Removed machines are rediscovered before this step. All other phases boot; unapproved
        // nodes boot without a token.
        _ => Ok(()),
    }
}

fn check_architecture(inputs: &PlanRequest<'_>) -> Result<(), Refusal> {
    let image = &inputs.contents.image;
    let built_for = inputs.contents.architecture;
    match inputs.request.arch {
        Some(machine) if machine != built_for => {
            Err(Refusal::ArchMismatch { image: image.clone(), built_for, machine })
        }
        _ => Ok(()),
    }
}

/// A machine without a driver for its NIC could report nothing.
fn check_nic_driver(inputs: &PlanRequest<'_>) -> Result<(), Refusal> {
    match (inputs.request.nic, &inputs.contents.kind) {
        (Some(nic), ImageKind::Root(parts)) if !parts.nic_drivers.may_drive(nic) => {
            Err(Refusal::NicDriverMissing { image: inputs.contents.image.clone(), nic })
        }
        _ => Ok(()),
    }
}

/// An overlay that Linux fetches cannot bring the program that fetches it.
fn check_delivery(inputs: &PlanRequest<'_>) -> Result<(), String> {
    let image = &inputs.contents.image;
    match (inputs.contents.kind.name(), inputs.site.boot.delivery) {
        (ImageKindName::Root, Delivery::Url) => {
            Err(format!("image {image} of kind root needs [boot].delivery = \"initrd\""))
        }
        (ImageKindName::Root, Delivery::Initrd) | (ImageKindName::Alpine, _) => Ok(()),
    }
}

/// Returns the URL of the overlay. It always uses HTTP: the last byte of a transfer to one address
/// spends a capability, which TFTP cannot guarantee.
fn overlay_url(inputs: &PlanRequest<'_>) -> Secret<String> {
    let file = match inputs.site.boot.delivery {
        Delivery::Initrd => "overlay.cpio.gz",
        Delivery::Url => "apkovl.tar.gz",
    };
    // The capability is exposed only to the script.
    Secret::new(format!("{}/overlay/{}/{file}", inputs.endpoint.http(), inputs.capability.expose()))
}
