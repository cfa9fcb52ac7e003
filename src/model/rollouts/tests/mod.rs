//! Rollouts in a simulated site: waves, floors, health, failures, orders of others.

mod cases;
mod others;
mod programs;
mod rack;
mod random;
mod returns;
