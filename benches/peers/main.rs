//! meshd beside its peers, on this machine, in this run:
//! `cargo bench --bench peers -- [tftp] [dhcp] [http]`.
//!
//! Only ratios count: a machine that is shared is fast now and slow then. So everyone runs in
//! turns, several times, and the median is printed. A peer that is not installed is named and left
//! out. What each row means stands in docs/performance.md.

#[allow(dead_code, unused_imports, reason = "each bench uses its part of the frame")]
#[path = "../frame/mod.rs"]
mod frame;

mod dhcp;
mod http;
mod tftp;

use frame::Table;

type Rows = fn(&mut Table) -> anyhow::Result<()>;

/// One protocol each: its rows, by the word that chooses them.
const PROTOCOLS: &[(&str, Rows)] =
    &[("dhcp", dhcp::rows), ("tftp", tftp::rows), ("http", http::rows)];

fn main() -> anyhow::Result<()> {
    tftp::serve_async_tftp()?;
    // `cargo bench` adds `--bench`.
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if let Some(unknown) = wanted.iter().find(|word| PROTOCOLS.iter().all(|(name, _)| name != word))
    {
        let known: Vec<&str> = PROTOCOLS.iter().map(|(name, _)| *name).collect();
        anyhow::bail!("there are no rows `{unknown}`; there are: {}", known.join(", "));
    }
    frame::begin()?;
    let mut table = Table::new();
    for (name, rows) in PROTOCOLS {
        if wanted.is_empty() || wanted.iter().any(|word| word == name) {
            rows(&mut table)?;
        }
    }
    table.finish("peers");
    Ok(())
}
