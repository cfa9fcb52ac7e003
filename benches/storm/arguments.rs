//! What was asked for.

use anyhow::Context as _;
use std::time::Duration;

/// Most machines: the subnet's addresses.
const MAX_NODES: u32 = 60_000;

/// The command line.
pub struct Arguments {
    pub nodes: u32,
    /// The last machine powers on so much later than the first.
    pub over: Duration,
    pub bulk: bool,
    /// When the storm is called off.
    pub limit: Duration,
}

impl Arguments {
    /// Reads pairs of a name and a value.
    pub fn read(words: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let seconds = Duration::from_secs;
        let mut arguments =
            Arguments { nodes: 1000, over: seconds(5), bulk: false, limit: seconds(120) };
        // `cargo bench` adds `--bench`.
        let mut words = words.filter(|word| word != "--bench");
        while let Some(name) = words.next() {
            let value = words.next().with_context(|| format!("{name} needs a value"))?;
            let number =
                || value.parse::<u32>().with_context(|| format!("{name} {value} is no number"));
            match name.as_str() {
                "--nodes" => arguments.nodes = number()?,
                "--over" => arguments.over = seconds(number()?.into()),
                "--seconds" => arguments.limit = seconds(number()?.into()),
                "--bulk" => arguments.bulk = value == "yes",
                _ => anyhow::bail!(
                    "{name} is not known; --nodes N --over SECONDS --bulk yes|no --seconds LIMIT are"
                ),
            }
        }
        anyhow::ensure!((1..=MAX_NODES).contains(&arguments.nodes), "--nodes is 1 to {MAX_NODES}");
        Ok(arguments)
    }
}
