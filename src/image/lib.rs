//! Images, bundles and overlays: catalog, rendering, building and importing.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `builder` | builds and imports images and bundles, and manages their versions |
//! | `catalog` | reads images and overlays into one immutable, digest-checked snapshot |
//! | `overlay` | renders overlays deterministically: plan, templates, archive |

pub mod builder;
pub mod catalog;
pub mod overlay;
