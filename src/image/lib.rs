//! What nodes boot, from recipe to rendered overlay.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`catalog`] | images, bundles and overlays as they are read from disk |
//! | [`overlay`] | one node's overlay, rendered |
//! | [`builder`] | builds and imports images and bundles |

pub mod builder;
pub mod catalog;
pub mod overlay;
