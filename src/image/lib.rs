//! Images, bundles and overlays: catalog and rendering.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `catalog` | reads images and overlays into one immutable, digest-checked snapshot |
//! | `overlay` | renders overlays deterministically: plan, templates, archive |

pub mod catalog;
pub mod overlay;
