//! End to end: real firmware, real iPXE, real Alpine, in racks of the lab. Few boots, many
//! assertions each.
//!
//! These tests need root, QEMU, a built image and a static agent, and take minutes, so `cargo test`
//! leaves them out unless they are named. `make e2e` provides what they need and names them;
//! `make test` does it too.
//!
//! `MESHD_E2E_AGENT` names the static agent (default: `target/agent/x86_64/mesh-agent`),
//! `MESHD_E2E_BLOBS` a folder of built images to share (default: `.lab/blobs`; the image is built
//! there if it is missing). A failed test prints the ends of all serial logs and of meshd's log
//! last.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

#[allow(dead_code, reason = "shared with the tests of power")]
mod bmcs;
mod boot;
mod browser;
#[path = "../kit/mod.rs"]
#[allow(dead_code, reason = "shared with the integration tests")]
mod kit;
mod nodes;
mod overlays;
mod racks;
mod work;
