//! The store's journal beside sled, redb and fjall: how many changes a second are durable, and what
//! an altered bit does to them.
//!
//! ADR 15 has the decision that these rows measure anew. meshd's rows include its own work for a
//! lease: checks, JSON and indexes.

#[allow(dead_code, unused_imports, reason = "each bench uses its part of the frame")]
#[path = "../frame/mod.rs"]
mod frame;

mod commits;
mod damage;
mod engine;

use frame::Table;

fn main() -> anyhow::Result<()> {
    let mut table = Table::new();
    commits::rows(&mut table)?;
    damage::rows(&mut table)?;
    table.finish("engines");
    Ok(())
}
