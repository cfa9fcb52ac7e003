//! Catalog: reads images and overlays into one immutable, digest-checked snapshot.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `agent` | finds the mesh-agent program and verifies that nodes can run it |
//! | `bundle` | built bundles: squashfs layers named by SHA-256 |
//! | `image` | built images: a manifest that names blobs by SHA-256 |
//! | `overlay` | reads and validates overlays from disk |
//! | `secrets` | secrets of overlays, read from the files that the site names |
//! | `snapshot` | the snapshot of images, bundles, overlays and secrets at one moment |
//! | `versions` | reads the versions of an image or bundle, and the current one |
//!
//! Only this module reads the folders of overlays and images. A change on disk becomes visible as a
//! complete new snapshot. While the new state has faults, the last valid snapshot stays.

pub mod agent;
pub mod bundle;
pub mod image;
pub mod overlay;
mod secrets;
mod snapshot;
pub mod versions;

pub use agent::{
    AgentError, AgentProgram, Stage1Program, agent_path, load_agent, load_stage1, stage1_path,
};
pub use bundle::{Bundle, BundleManifest};
pub use image::{Image, ImageError, ImageManifest};
pub use overlay::{Overlay, Overlays, read_overlays};
pub use secrets::{Secrets, read_secrets};
pub use snapshot::Catalog;
