//! The program `meshd`: servers, start-up, command line. The crates below `src/` hold everything
//! else; see docs/architecture.md.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `serve` | the servers, in the order in which a node meets them |
//! | `daemon` | bind, spawn in boot-chain order, drain |
//! | `cli` | the words that an operator types |
//!
//! Without the feature `server` this crate is empty: the program `mesh-agent` uses `meshd_agent`
//! alone.

#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod daemon;
#[cfg(feature = "server")]
pub mod serve;
