//! A sample site and node for golden files.

use super::{
    GroupContext, ImageFacts, Kind, MemberContext, MemberSize, NodeContext, NodePrograms, Origin,
    PublicOverlay, RenderInput, RenderedFile, render_part,
};
use crate::catalog::overlay::{Layer, Overlay, Overlays, Source, System};
use bytes::Bytes;
use meshd_config::{Faults, Profile, Site};
use meshd_model::image_kind::ImageKindName;
use meshd_types::{Digest, NodeId, OverlayName};
use std::{collections::BTreeMap, net::Ipv4Addr, path::Path};

/// Site name in golden files.
const SITE: &str = r#"
[site]
name = "rack-a"
[net]
interface = "br0"
[dhcp]
range = "10.77.0.100-10.77.0.200"
[defaults]
profile = "compute"
[profiles.compute]
image = "alpine-lab"
"#;
/// List of all files in a golden folder.
pub const LISTING: &str = "FILES";

/// A site with one profile, and all other inputs of a rendering.
#[derive(Debug)]
pub struct Sample {
    pub site: Site,
    /// The only profile, `compute`.
    pub profile: Profile,
    pub overlays: Overlays,
    /// The node, in a group `pair` with one other node.
    pub node: NodeContext,
    /// Placeholder bytes.
    pub programs: NodePrograms,
    /// Invented digests.
    pub image: ImageFacts,
}

impl Sample {
    /// Creates a sample with these overlays, in this order. Each declared secret exists.
    pub fn new(mut overlays: Overlays, names: Vec<OverlayName>) -> Self {
        let site =
            meshd_config::parse(SITE, Path::new("site.toml")).expect("the made-up site is valid");
        let profile = site.profiles[&site.default_profile].clone();
        let variables = overlays.all().flat_map(|overlay| &overlay.variables);
        let secrets =
            variables.filter(|(_, variable)| variable.secret).map(|(name, _)| name.clone());
        overlays.secret_marks = secrets.map(|name| (name, Digest::of(b"a secret"))).collect();
        let [id, other] = ["0123abcd", "1123abcd"].map(|id| id.parse().expect("a node ID"));
        let image = image(System::Alpine);
        Sample {
            profile: Profile { overlays: names, ..profile },
            node: NodeContext { groups: vec![pair(id, other)], ..NodeContext::new(id, None) },
            programs: NodePrograms::new(Bytes::from_static(b"an agent"), None),
            image,
            site,
            overlays,
        }
    }

    /// Replaces the image with one of another system.
    #[must_use]
    pub fn on(self, system: System) -> Self {
        Sample { image: image(system), ..self }
    }

    /// Renders the overlays, which need not boot.
    pub fn render(&self) -> Result<PublicOverlay, Faults> {
        render_part(&self.input())
    }

    /// Returns the inputs of a rendering.
    pub fn input(&self) -> RenderInput<'_> {
        RenderInput {
            site: &self.site,
            profile: &self.profile,
            overlays: &self.overlays,
            node: &self.node,
            central: Ipv4Addr::new(10, 77, 0, 1),
            programs: &self.programs,
            image: &self.image,
        }
    }
}

fn image(system: System) -> ImageFacts {
    let (name, kind) = match system {
        System::Alpine => ("alpine-lab", ImageKindName::Alpine),
        System::Systemd => ("debian-12", ImageKindName::Root),
    };
    let name = name.parse().expect("a plain name");
    let image = ImageFacts::placeholder(name, kind, Digest::of(b"modloop"));
    ImageFacts { manifest: Digest::of(b"manifest"), ..image }
}

fn pair(id: NodeId, other: NodeId) -> GroupContext {
    let member = |id: NodeId, last| MemberContext {
        id,
        hostname: NodeContext::new(id, None).hostname(),
        address: Some(Ipv4Addr::new(10, 77, 0, last)),
        size: MemberSize::of(8, 33_000_000),
    };
    let members = vec![member(id, 101), member(other, 102)];
    GroupContext {
        name: "pair".parse().expect("a plain name"),
        overlays: Vec::new(),
        members: members.into(),
    }
}

/// Returns the content of an overlay's golden folder for a system by path: `FILES`, and the text
/// of each template and each generated file. Plain files are in `rootfs/` already.
pub fn golden(
    overlays: &Overlays,
    overlay: &Overlay,
    system: System,
) -> Result<BTreeMap<String, String>, Faults> {
    let Layer::Named(name) = &overlay.name else { return Ok(BTreeMap::new()) };
    let names = overlay.golden.after.iter().chain([name]).cloned().collect();
    let mut sample = Sample::new(overlays.clone(), names).on(system);
    sample.node.vars = overlay.golden.vars.clone();
    let public = sample.render()?;
    let this = Origin::Overlay(overlay.name.clone());
    // Generated files are included if this overlay contributes to them, or none does.
    let of_this = |file: &&RenderedFile| {
        file.origins.contains(&this) || file.origins.as_slice() == [Origin::Generated]
    };
    let files: Vec<&RenderedFile> = public.files.iter().filter(of_this).collect();
    let mut golden =
        BTreeMap::from([(LISTING.to_owned(), files.iter().map(|file| line(file)).collect())]);
    for file in files {
        let entry = overlay.entries.get(&file.path);
        let plain =
            entry.is_some_and(|entry| !entry.append && matches!(entry.source, Source::File(_)));
        // The digests repeat every change of a file, so they are omitted.
        let digests = file.path.relative().ends_with("manifest.sha256");
        if let (Kind::File(bytes) | Kind::Secret(bytes), false, false) =
            (&file.kind, plain, digests)
        {
            golden.insert(
                file.path.relative().to_owned(),
                String::from_utf8_lossy(bytes).into_owned(),
            );
        }
    }
    Ok(golden)
}

fn line(file: &RenderedFile) -> String {
    let target =
        if let Kind::Link(target) = &file.kind { format!(" -> {target}") } else { String::new() };
    let note = match &file.kind {
        _ if file.origins.first() == Some(&Origin::Generated) => "  (made by meshd)",
        Kind::Secret(_) => "  (secret)",
        _ if file.origins.len() > 1 => "  (appended)",
        _ => "",
    };
    format!(
        "{:9} {:04o} {}:{} {}{target}{note}\n",
        file.kind, file.mode, file.owner.0, file.owner.1, file.path
    )
}
