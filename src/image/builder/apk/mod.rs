//! Alpine's package format as a mirror serves it (apk v2): index, signatures, versions, dependencies. Everything but [`signature`]
//! is pure. A row of gzip members, each holding tar entries: signature, control or index, and in a package the data.

pub mod closure;
pub mod depends;
pub mod index;
pub mod members;
pub mod package;
pub(super) mod signature;
pub mod version;

#[cfg(test)]
mod closure_tests;
