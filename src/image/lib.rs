//! Images, bundles and overlays: catalog, rendering, building and importing.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `builder` | builds and imports images and bundles, and manages their versions |
//! | `catalog` | catalog: reads images and overlays into one immutable, digest-checked snapshot |
//! | `overlay` | renders overlays deterministically: plan, templates, archive |
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`catalog`] | images, bundles and overlays as they are read from disk |
//! | [`overlay`] | one node's overlay, rendered |
//! | [`builder`] | builds and imports images and bundles |

pub mod builder;
pub mod catalog;
pub mod overlay;
