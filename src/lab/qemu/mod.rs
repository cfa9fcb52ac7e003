//! QEMU as the hardware of a node.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `command_line` | the arguments of QEMU for one node |
//! | `accel` | the choice between KVM and emulation |
//! | `firmware` | SeaBIOS and OVMF images |
//! | `vfio_trial_hardware` | additional hardware: for VFIO trials, and other NICs |
//! | `qmp` | the control socket |
//! | `serial` | readable text from serial ports |
//! | `console` | an interactive serial console |

pub(crate) mod accel;
pub(crate) mod command_line;
pub(crate) mod console;
pub(crate) mod vfio_trial_hardware;
pub(crate) mod firmware;
pub(crate) mod qmp;
pub(crate) mod serial;
