//! Images and disks of VMs. [`crate::disks`] opens, wipes and marks disks.
//!
//! | module | content |
//! | --- | --- |
//! | `volume_fetch` | fetches image files, named by digest, from the central node |
//! | `qcow2_layer` | the qcow2 layer that a VM writes, above a base image |
//! | `disk_write` | writes an image onto a disk of the node before the first start, and compares |
//! | `ownership_marker` | which disks a VM owns and whether their image is written |
//! | `disk_release` | checks that the disks of a released VM are idle, and wipes them |
//! | `cloud_init_seed` | the NoCloud image of cloud-init; pure |

pub mod cloud_init_seed;
pub mod disk_release;
pub mod disk_write;
pub mod ownership_marker;
pub mod qcow2_layer;
pub mod volume_fetch;
