//! Rendering: the public overlay of a node and its generation, made once for the same input.

use super::{Central, lock};
use crate::boot::{self, Endpoint, ImageParts};
use crate::catalog::Image;
use crate::fleet::{Generation, Node};
use crate::id::{Digest, ProfileName};
use crate::overlay::{self, ImageFacts, NodeContext, PublicOverlay, RenderFaults, RenderInput};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Rendered overlays kept; the oldest half goes when it is full. One takes some kilobytes beside the shared agent member.
const MAX_CACHED: usize = 4096;

/// Rendered overlays by the digest of what determines them.
#[derive(Default)]
pub(super) struct Cache(Mutex<CacheInner>);

#[derive(Default)]
struct CacheInner {
    rendered: BTreeMap<Digest, (u64, Rendered)>,
    clock: u64,
}

/// A node's next boot: everything public of it.
#[derive(Clone)]
pub struct Rendered {
    /// The public part of its overlay.
    pub overlay: Arc<PublicOverlay>,
    /// The digest of everything public.
    pub generation: Generation,
    /// The profile that it was made for.
    pub profile: ProfileName,
}

/// What a script promised; the overlay of its session must keep it.
pub(super) type Promise = Rendered;

/// Why nothing was rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The site has no such profile any more.
    #[error("profile `{profile}` is not in the site; assign another one")]
    NoProfile {
        /// Which.
        profile: String,
    },
    /// The image is not built, or damaged.
    #[error("image `{image}` cannot be served; run `meshd image build {image}`")]
    NoImage {
        /// Which.
        image: String,
    },
    /// The overlays have faults.
    #[error("the overlays of profile `{profile}` cannot be rendered")]
    Faults {
        /// Which.
        profile: String,
        /// All of them.
        source: RenderFaults,
    },
}

impl Central {
    /// Renders what this node would boot now.
    pub fn render(&self, node: &Node, endpoint: Endpoint) -> Result<Rendered, RenderError> {
        if let Some(missing) = node.profile.as_ref().filter(|name| !self.site.profiles.contains_key(*name)) {
            return Err(RenderError::NoProfile { profile: missing.to_string() });
        }
        let profile = boot::effective_profile(&self.site, node);
        let catalog = self.catalog();
        let image = catalog.image(&profile.image);
        let image = image.ok_or_else(|| RenderError::NoImage { image: profile.image.to_string() })?;
        let facts = ImageFacts::of(&image.manifest);
        let context = NodeContext { id: node.id, name: Some(node.name.clone()) };
        let key = Digest::of_fields([
            catalog.overlays_digest().0.as_slice(),
            facts.manifest.0.as_slice(),
            profile.name.as_str().as_bytes(),
            node.id.to_string().as_bytes(),
            node.name.as_bytes(),
            endpoint.address.octets().as_slice(),
        ]);
        if let Some(rendered) = self.renders.get(key) {
            return Ok(rendered);
        }
        let input = RenderInput {
            site: &self.site,
            profile,
            overlays: catalog.overlays(),
            node: &context,
            central: endpoint.address,
            ca_pem: self.authority.certificate_pem(),
            agent: &self.agent,
            image: &facts,
        };
        let public = overlay::render_public(&input)
            .map_err(|source| RenderError::Faults { profile: profile.name.to_string(), source })?;
        let args = boot::kernel_args(&self.site, profile, image_parts(image).arch);
        let generation = overlay::generation(&facts, public.digest, profile, &args);
        let rendered = Rendered { overlay: Arc::new(public), generation, profile: profile.name.clone() };
        self.renders.put(key, rendered.clone());
        Ok(rendered)
    }
}

/// What the script has to know of an image.
pub(super) fn image_parts(image: &Image) -> ImageParts {
    let parts = &image.manifest.parts;
    ImageParts {
        arch: image.manifest.arch,
        kernel: parts.kernel.digest,
        initramfs: parts.initramfs.digest,
        packages: parts.packages.digest,
        modloop: parts.modloop.digest,
    }
}

impl Cache {
    fn get(&self, key: Digest) -> Option<Rendered> {
        lock(&self.0).rendered.get(&key).map(|(_, rendered)| rendered.clone())
    }

    fn put(&self, key: Digest, rendered: Rendered) {
        let mut inner = lock(&self.0);
        inner.clock += 1;
        let clock = inner.clock;
        inner.rendered.insert(key, (clock, rendered));
        if inner.rendered.len() > MAX_CACHED {
            let keep_after = clock.saturating_sub(MAX_CACHED as u64 / 2);
            inner.rendered.retain(|_, (made, _)| *made > keep_after);
        }
    }
}
