//! `meshd node logs`: kernel messages and system log of one boot.

use crate::cli::{
    client::AdminClient,
    output::{failure::Failure, print},
};
use clap::{Args, ValueEnum};
use meshd_api::{BootLogLine, routes as api};
use meshd_proto::log::LogSource;
use meshd_types::BootSessionId;
use std::{collections::BTreeMap, io::Write as _};

/// Maximum length of a line, in bytes. Longer lines are split.
const MAX_LINE: usize = 64 << 10;

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Node ID or name
    node: String,
    /// Boot session [default: the newest]
    #[arg(long, value_name = "ID")]
    session: Option<BootSessionId>,
    /// Only one source
    #[arg(long, value_enum)]
    source: Option<SourceArg>,
    /// Show new lines until the next boot
    #[arg(short, long)]
    follow: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum SourceArg {
    /// Messages of the kernel
    Kernel,
    /// Messages of services, the agent included
    System,
}

impl Logs {
    /// Prints whole lines. Replaces control characters that a node sent, because a terminal would execute them.
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let path = api::GET_NODE_LOG.path([&self.node]).with("follow", self.follow);
        let path = path.with_optional("session", self.session);
        let mut partial: BTreeMap<LogSource, Vec<u8>> = BTreeMap::new();
        let lines = client.lines(path, |line, _| {
            match line {
                BootLogLine::Dropped { dropped } => {
                    eprintln!("meshd: {} of the log were not kept here", print::bytes(dropped));
                }
                BootLogLine::Piece(piece) if self.shows(piece.stream) => {
                    let rest = partial.entry(piece.stream).or_default();
                    rest.extend(piece.data.into_bytes().unwrap_or_default());
                    let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
                    let whole = if rest.len() - whole > MAX_LINE { rest.len() } else { whole };
                    write(&rest.drain(..whole).collect::<Vec<u8>>())?;
                }
                BootLogLine::Piece(_) => {}
            }
            Ok(())
        });
        lines.await?;
        partial.values().try_for_each(|rest| write(rest))
    }

    fn shows(&self, source: LogSource) -> bool {
        match self.source {
            None => true,
            Some(SourceArg::Kernel) => source == LogSource::Kernel,
            Some(SourceArg::System) => source == LogSource::System,
        }
    }
}

fn write(text: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    for line in String::from_utf8_lossy(text).lines() {
        writeln!(out, "{}", print::clean(&line.replace('\t', "    ")))?;
    }
    Ok(out.flush()?)
}
