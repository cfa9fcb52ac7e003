//! VMs: capabilities of a node, specification, desired state and reported state.
//!
//! | module | content |
//! | --- | --- |
//! | `check` | limits and consistency rules of a VM specification, checked by the central node and by the agent |
//! | `console` | VM console between node and operator |
//! | `desired_state` | VM messages of the link: the desired state of one VM, and the report of a node on all |
//! | `disk` | whole disks of a node that a VM uses: selection and wiping |
//! | `hosting` | capabilities of a node for VMs |
//! | `memory` | memory that VMs take from their node |
//! | `qcow2` | parses the header of a qcow2 image (QEMU's docs/interop/qcow2.txt) to decide whether the image may be used |
//! | `ready` | when a guest is ready |
//! | `size` | sizes of memory and disks: `512M`, `64G` |
//! | `spec` | the specification of a VM |
//! | `state` | state and failure of a VM, as its node reports them |

mod check;
mod console;
mod desired_state;
mod disk;
mod hosting;
mod memory;
pub mod qcow2;
mod ready;
mod size;
mod spec;
mod state;

pub use check::{MAX_SEED_TEXT, SpecFault, is_host_address};
pub use console::{ConsoleId, ConsoleNote, ConsoleOrder, MAX_PIECE};
pub use desired_state::{MAX_VMS, ReleasedDisk, SlotDisk, VmEntry, VmTarget, VmUpdate};
pub use disk::{OnRelease, RawDisk};
pub use hosting::{Hosting, HugepageFacts, NumaFacts};
pub use memory::{LAYER_MARGIN, NODE_RESERVE, layer_growth};
pub use ready::ReadyCheck;
pub use size::ByteSize;
pub use spec::{
    CloudInit, CpuModel, Firmware, MachineType, Nic, RestartPolicy, RestartWhen, VmSpec, Volume,
    VolumeName, VolumeSource,
};
pub use state::{
    MAX_FAILURE_LINES, MAX_FAILURE_TEXT, ReportedVmState, VmFailure, VmFailureKind, VmFetching,
    VmRefusal, VmRefusalReason, VmReport,
};

#[cfg(test)]
mod tests;
