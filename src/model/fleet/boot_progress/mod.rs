//! The boot of a machine.
//!
//! | module | content |
//! | --- | --- |
//! | `boot_session` | one power-on with the times of its stages |
//! | `stage` | stages of a boot in the order of the chain |
//! | `stall` | overdue stages and their likely cause |
//! | `boot_loop` | repeated boots that never come online |

pub mod boot_loop;
pub mod boot_session;
pub mod stage;
pub mod stall;
