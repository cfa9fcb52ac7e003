//! The boot of a machine.
//!
//! | module | content |
//! | --- | --- |
//! | `boot_session` | one power-on with the times of its stages |
//! | `stage` | stages of a boot in the order of the chain |
//! | `stall` | the record of an overdue stage and its likely cause |
//! | `stall_detection` | detects overdue stages |
//! | `boot_loop` | repeated boots that never come online |

pub mod boot_loop;
pub mod boot_session;
pub mod stage;
pub mod stall;
pub mod stall_detection;
