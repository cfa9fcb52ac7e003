//! A virtual machine as the central node orders it and as the node tells of it.
//!
//! ```text
//! spec   what it shall be: every field typed, every text bounded
//! disk   which disk of the node it gets
//! check  what only holds between fields, and all bounds: asked by who reads a vm.toml and by the node that shall run it
//! state  what it is: closed words, with the reason where it is not as asked
//! order  what the link says of it: the whole wish one way, the whole state the other
//! console  what goes between the console of a machine and who sits at it
//! qcow2    may this image be used? asked by who takes it in and by the node
//! memory what it takes of its node's memory
//! size   `^[0-9]+[KMGT]$`
//! ```

mod check;
mod console;
mod disk;
mod memory;
mod order;
pub mod qcow2;
mod size;
mod spec;
mod state;

pub use check::{SpecFault, is_of_a_machine, max_seed_text};
pub use console::{ConsoleId, ConsoleNote, ConsoleOrder, MAX_PIECE};
pub use disk::{OnRelease, RawDisk};
pub use memory::{LAYER_MARGIN, NODE_RESERVE, layer_growth};
pub use order::{LeftDisk, MAX_VMS, SlotDisk, VmNews, VmOrder, VmWant};
pub use size::{ByteSize, ParseByteSizeError};
pub use spec::{
    CloudInit, CpuModel, DiskIdentity, Firmware, InterfaceName, MachineType, Nic, PRIVATE_BRIDGE, RestartPolicy,
    RestartWhen, VmSpec, VmTextError, Volume, VolumeName, VolumeSource,
};
pub use state::{
    DiskUse, MAX_FAILURE_LINES, MAX_FAILURE_TEXT, VmFailure, VmFailureKind, VmFetching, VmRefusal, VmRefusalReason,
    VmReport, VmState,
};

#[cfg(test)]
mod tests;
