//! Images: imported from a mirror that is laid out like Alpine's or from a registry, their versions
//! under `kill -9`, builds that are interrupted, and images of kind `root`.

mod imported;
mod interrupted;
mod killed;
mod mirror;
mod registry;
mod roots;
