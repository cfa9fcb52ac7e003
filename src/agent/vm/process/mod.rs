//! One VM and its QEMU process.
//!
//! | module | content |
//! | --- | --- |
//! | `vm_state_machine` | stopped, starting, running, paused, stopping, waiting, failed: transitions and timeouts; pure |
//! | `vm_event` | its events, actions and stored state |
//! | `exit_status` | why QEMU ended or paused the guest; pure |
//! | `supervisor` | takes commands, passes events to the state machine and executes its actions |
//! | `persisted_vm` | the stored record of a VM |
//! | `launch` | checks resources, makes files, starts QEMU; cleans up after its end |
//! | `swtpm` | the TPM of a VM |
//! | `adoption` | finds a running QEMU after a restart of the agent |
//! | `qemu_process` | starts, watches and signals a process |
//! | `qmp_client` | the connection to QEMU's control socket |
//! | `qmp_message` | messages of the QEMU Machine Protocol; pure |
//! | `release_wait` | waits until units and disks of a stopped VM are free |

pub mod adoption;
pub mod exit_status;
pub mod launch;
pub mod qemu_process;
pub mod qmp_message;
pub mod qmp_client;
pub mod release_wait;
pub mod supervisor;
pub mod swtpm;
pub mod vm_event;
pub mod persisted_vm;
pub mod vm_state_machine;
