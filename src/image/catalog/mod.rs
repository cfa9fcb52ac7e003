//! Step 3, catalog: images and overlays, read into one immutable, digest-checked snapshot.
//!
//! Nothing behind this module reads an overlay's or an image's folder. A change on disk becomes visible as a whole new
//! snapshot or not at all: while anything in it is wrong, the last good one stays.

pub mod agent;
pub mod bundle;
pub mod image;
pub mod overlay;
mod secrets;
mod snapshot;
pub mod versions;

pub use agent::{AgentError, AgentProgram, agent_path, load_agent};
pub use bundle::{Bundle, BundleManifest};
pub use image::{Image, ImageError, ImageManifest};
pub use overlay::{Overlay, Overlays, read_overlays};
pub use secrets::{Secrets, read_secrets};
pub use snapshot::Catalog;
