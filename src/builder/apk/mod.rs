//! Alpine's package format (apk v2): indexes, signatures, versions, dependencies. Only
//! [`signature`] is not pure. A package is a sequence of gzip members with tar entries: signature,
//! control, data.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `closure` | resolves package dependencies from the indexes of a mirror |
//! | `depends` | dependencies and provisions of a package: `musl`, `so:libz.so.1`, `openrc>=0.50`, `!systemd` |
//! | `index` | `APKINDEX`: parses the package records of a repository |
//! | `members` | reads and writes concatenated gzip members and the tar archives in them |
//! | `package` | verifies a package against its index record: size, SHA-1 and SHA-256 |
//! | `signature` | signs and verifies package indexes with openssl |
//! | `version` | ordering of Alpine package versions, such as `1.2.10a_rc1-r3` |

pub mod closure;
pub mod depends;
pub mod index;
pub mod members;
pub mod package;
pub(super) mod signature;
pub mod version;

#[cfg(test)]
mod closure_tests;
