//! `meshd node logs`: kernel messages and system log of one boot.

use super::targets::NamedNodes;
use crate::cli::{
    client::AdminClient,
    output::{
        failure::Failure,
        print,
        writer::{ForeignOutput, RawOutput},
    },
};
use clap::{Args, ValueEnum};
use meshd_api::{BootLogLine, routes as api};
use meshd_proto::log::LogSource;
use meshd_types::BootSessionId;
use std::collections::BTreeMap;

/// Maximum length of a line, in bytes. Longer lines are split.
const MAX_LINE: usize = 64 << 10;

#[derive(Debug, Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    nodes: NamedNodes,
    /// Boot session [default: the newest]
    #[arg(long, value_name = "ID")]
    session: Option<BootSessionId>,
    /// Only one source
    #[arg(long, value_enum)]
    source: Option<SourceArg>,
    /// Show new lines until the next boot
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    raw: RawOutput,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum SourceArg {
    /// Messages of the kernel
    Kernel,
    /// Messages of services, the agent included
    System,
    /// Text of the serial port, while the machine boots
    Console,
    /// Messages of the kernel that came by UDP
    Netconsole,
    /// Reason why the first program stopped the boot
    #[value(name = "boot_failure", alias = "boot-failure")]
    BootFailure,
}

impl Logs {
    /// Prints the logs of the nodes, one after another.
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let nodes = self.nodes.paths(client).await?;
        if self.follow && nodes.len() > 1 {
            return Err(Failure::new(
                format!("cannot follow the logs of {} nodes", nodes.len()),
                "name one node, or omit --follow",
            ));
        }
        for node in &nodes {
            if nodes.len() > 1 {
                message!("# {}", node.title);
            }
            self.print(client, &node.path).await?;
        }
        Ok(())
    }

    /// Prints whole lines: an unfinished line of one source must not continue with a line of the
    /// other.
    async fn print(&self, client: &AdminClient, node: &str) -> Result<(), Failure> {
        let path = api::GET_NODE_LOG.path([&node]).with("follow", self.follow);
        let path = path.with_optional("session", self.session);
        let mut partial: BTreeMap<LogSource, Vec<u8>> = BTreeMap::new();
        let mut output = ForeignOutput::new(self.raw);
        let lines = client.lines(path, |line, _| {
            match line {
                BootLogLine::Dropped { dropped } => {
                    message!("meshd: {} of the log are missing", print::bytes(dropped));
                }
                BootLogLine::Piece(piece) if self.shows(piece.stream) => {
                    let rest = partial.entry(piece.stream).or_default();
                    rest.extend(piece.data.into_bytes().unwrap_or_default());
                    let whole =
                        rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
                    let whole = if rest.len() - whole > MAX_LINE { rest.len() } else { whole };
                    output.out(&rest.drain(..whole).collect::<Vec<u8>>())?;
                }
                BootLogLine::Piece(_) => {}
            }
            Ok(())
        });
        lines.await?;
        partial
            .values()
            .filter(|rest| !rest.is_empty())
            .try_for_each(|rest| output.out(&[rest, &b"\n"[..]].concat()))?;
        output.end();
        Ok(())
    }

    fn shows(&self, source: LogSource) -> bool {
        match self.source {
            None => true,
            Some(SourceArg::Kernel) => source == LogSource::Kernel,
            Some(SourceArg::System) => source == LogSource::System,
            Some(SourceArg::Console) => source == LogSource::Console,
            Some(SourceArg::Netconsole) => source == LogSource::Netconsole,
            Some(SourceArg::BootFailure) => source == LogSource::BootFailure,
        }
    }
}
