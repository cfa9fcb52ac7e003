//! The program `meshd`: start-up and command line. The crates below `src/` hold everything
//! else; see docs/architecture.md.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `daemon` | bind, spawn in boot-chain order, drain |
//! | `cli` | the words that an operator types |
//!
//! Without the feature `server` this crate is empty: the program `mesh-agent` uses `meshd_agent`
//! alone.

#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod daemon;
