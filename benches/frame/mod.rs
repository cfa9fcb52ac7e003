//! What the benchmarks stand on: two network namespaces joined by a wire, servers that are started
//! and always stopped, a site with an image, and a table of figures.
//!
//! A bench starts with [`begin`], makes a [`Wire`], starts one server at a time in its server
//! namespace, loads it from the client namespace, and prints rows to a [`Table`].

mod calibrate;
mod cleanup;
mod placement;
mod process;
mod rack;
mod site;
mod table;
mod wire;

pub use calibrate::{calibrate, rate};
pub use cleanup::begin;
pub use placement::placements;
pub use process::{Process, Server, cpu_of, installed};
pub use rack::{Rack, central};
pub use site::{AGENT_PORT, HTTP_PORT, Image, Site};
pub use table::{Contender, Goal, Table, medians};
pub use wire::{CLIENT, CLIENT_INTERFACE, SERVER, SERVER_INTERFACE, Wire};

/// Runs of each contender of a row; the median counts.
pub const RUNS: usize = 3;
