//! Workloads on netbooted nodes.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `bundles` | `meshd lab try` with the shipped overlays and bundles |
//! | `containers` | a container that serves HTTP on each node; `mpi` calls it |
//! | `mpi` | an MPI task on two nodes, one of which loses power |
//! | `vfio` | IOMMU groups, drivers and units |
//! | `vms` | VMs with a GPU, a slot's disk and both networks |

mod bundles;
mod containers;
mod mpi;
mod vfio;
pub mod vms;
