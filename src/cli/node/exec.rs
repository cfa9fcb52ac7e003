//! `meshd node exec`: a task on each of one or several nodes.

use super::targets::NamedNodes;
use crate::cli::{
    Failure,
    client::AdminClient,
    output::writer::RawOutput,
    task::{OnInterrupt, run_attached, span, user},
};
use clap::Args;
use meshd_api::RunTask;
use meshd_model::work::task::Launcher;
use meshd_proto::task::TaskUser;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    nodes: NamedNodes,
    /// Time limit, such as 90s or 12h
    #[arg(long, value_name = "TIME", value_parser = span)]
    timeout: Option<Duration>,
    /// User ID from 1000 on, or root (role admin)
    #[arg(long, value_name = "UID|root", value_parser = user)]
    user: Option<TaskUser>,
    /// Pass standard input on to the program
    #[arg(long, short = 'i')]
    stdin: bool,
    #[command(flatten)]
    raw: RawOutput,
    /// Program and arguments, without a shell
    #[arg(last = true, required = true, value_name = "ARGV")]
    argv: Vec<String>,
}

impl Exec {
    /// Runs the program on one node after another, prints its output and ends with its first exit
    /// code other than 0. A signal or a closed output cancels the task.
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let nodes = self.nodes.paths(client).await?;
        if self.stdin && nodes.len() > 1 {
            return Err(Failure::new(
                format!("cannot pass standard input to {} nodes: it can be read once", nodes.len()),
                "name one node",
            ));
        }
        for node in &nodes {
            if nodes.len() > 1 {
                message!("# {}", node.title);
            }
            let order = RunTask {
                group: None,
                node: Some(node.path.clone()),
                argv: self.argv.clone(),
                nodes: Some(1),
                ranks_per_node: Some(1),
                launcher: Some(Launcher::None),
                user: self.user.unwrap_or_default(),
                timeout_s: self.timeout.map(|limit| limit.as_secs()),
                has_input: self.stdin,
            };
            run_attached(client, &order, OnInterrupt::Cancel, self.raw).await?;
        }
        Ok(())
    }
}
