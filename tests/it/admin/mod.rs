//! Who may tell meshd what to do: the admin plane by HTTPS, and what the process itself may do.

mod fencing;
mod https;
pub mod https;
mod process;
mod service;
