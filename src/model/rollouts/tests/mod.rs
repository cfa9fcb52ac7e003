//! Rollouts in a simulated site: waves, floors, health, failures, orders of others.

mod cases;
mod others;
mod rack;
mod random;
