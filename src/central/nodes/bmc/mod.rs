//! The BMC of a node, beside the orders to it.
//!
//! | module | content |
//! | --- | --- |
//! | `console_logs` | the consoles of booting machines, written into the logs of their boots |
//! | `console_text` | recorded text until it is stored, bounded |
//! | `status` | power state, sensors, event log, firmware, serial console for operators |

mod console_logs;
mod console_text;
mod status;
