//! Step 8, CLI: one file for each verb, one printer for all.
pub mod lab;
