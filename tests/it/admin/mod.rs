//! Who may tell meshd what to do: the admin API by HTTPS, and what the process itself may do.

mod browser;
mod confirmations;
mod fencing;
pub mod https;
mod operator;
mod process;
mod queries;
mod roles;
mod schema;
mod service;
mod sessions;
mod several;
mod support_bundle;
mod ui;
