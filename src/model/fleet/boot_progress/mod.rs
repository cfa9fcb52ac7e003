//! The boot of a machine.
//!
//! | module | content |
//! | --- | --- |
//! | `boot_session` | one power-on with the times of its stages |
//! | `dhcp_attempt` | DHCP requests of one program in one boot |
//! | `stage` | stages of a boot in the order of the chain |
//! | `stall` | the record of an overdue stage and its likely cause |
//! | `stall_detection` | detects overdue stages |
//! | `boot_loop` | repeated boots that never come online |
//! | `boot_times` | where the time of a boot goes, and what to change |
//! | `warm_reboot` | the last order to reboot without the firmware |

pub mod boot_loop;
pub mod boot_session;
pub mod boot_times;
pub mod dhcp_attempt;
pub mod stage;
pub mod stall;
pub mod stall_detection;
pub mod warm_reboot;
