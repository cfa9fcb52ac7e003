//! A virtual machine as the central node orders it and as the node tells of it.
//!
//! ```text
//! spec   what it shall be: every field typed, every text bounded
//! check  what only holds between fields, and all bounds: asked by who reads a vm.toml and by the node that shall run it
//! state  what it is: closed words, with the reason where it is not as asked
//! order  what the link says of it: the whole wish one way, the whole state the other
//! console  what goes between the console of a machine and who sits at it
//! qcow2    may this image be used? asked by who takes it in and by the node
//! size   `^[0-9]+[KMGT]$`
//! ```

mod check;
mod console;
mod order;
pub mod qcow2;
mod size;
mod spec;
mod state;

pub use check::{SpecFault, max_seed_text};
pub use console::{ConsoleId, ConsoleNote, ConsoleOrder, MAX_PIECE};
pub use order::{MAX_VMS, VmNews, VmOrder, VmWant};
pub use size::{ByteSize, ParseByteSizeError};
pub use spec::{
    CloudInit, CpuModel, DiskIdentity, Firmware, InterfaceName, MachineType, Nic, RestartPolicy, RestartWhen, VmSpec,
    VmTextError, Volume, VolumeName, VolumeSource,
};
pub use state::{
    MAX_FAILURE_LINES, MAX_FAILURE_TEXT, VmFailure, VmFailureKind, VmFetching, VmRefusal, VmRefusalReason, VmReport,
    VmState,
};

#[cfg(test)]
mod tests;
