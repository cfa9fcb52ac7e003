//! Bisections: a search for the first bad generation of a profile, as records. Pure.
//!
//! | module | content |
//! | --- | --- |
//! | `next_probe` | the generation to boot next, or the result |
//! | `record` | the record of a bisection and of its probes |
//!
//! A probe is a rollout of one node to one generation, with the check as its gate. The record names
//! the rollout, and holds its verdict once the rollout has ended.

mod next_probe;
mod record;

#[cfg(test)]
mod tests;

pub use next_probe::{NextProbe, next_probe, untested};
pub use record::{Bisection, BisectionState, Probe, ProbeVerdict};
