//! Images: imported from a mirror that is laid out like Alpine's or from a registry, their versions
//! under `kill -9`, and builds that are interrupted.

mod imported;
mod interrupted;
mod killed;
mod mirror;
mod registry;
