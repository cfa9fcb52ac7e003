//! Serial consoles of VMs.
//!
//! | module | content |
//! | --- | --- |
//! | `console_log` | output: QEMU appends it to a file; readers follow that file |
//! | `console_input` | input on its way to QEMU's FIFO |
//! | `console_session` | connects a console to the central node |

pub mod console_input;
pub mod console_log;
pub mod console_session;
