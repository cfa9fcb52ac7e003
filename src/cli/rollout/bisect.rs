//! `meshd bisect`: searches the first bad generation of a profile.

use super::{options::time, text};
use crate::cli::{
    Context, Failure,
    client::{AdminClient, RecordProgress, follow_record},
    node::targets::joined,
    output::print::{Output, confirm},
    wait,
};
use clap::{Args, Subcommand};
use meshd_api::{BisectionView, StartBisection, routes as api};
use meshd_model::bisections::BisectionState;
use meshd_types::{BisectionId, Hostlist, ProgramName};
use std::time::Duration;

/// Spare nodes boot generations until the first bad one is known.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Bisect {
    #[command(subcommand)]
    command: Option<BisectCommand>,
    #[command(flatten)]
    start: StartBisectionArgs,
}

#[derive(Debug, Subcommand)]
enum BisectCommand {
    /// List bisections, the newest last
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Show a bisection and its boots
    Show {
        /// Bisection ID
        bisection: BisectionId,
        #[command(flatten)]
        output: Output,
    },
    /// Follow a bisection to its end
    Follow {
        /// Bisection ID
        bisection: BisectionId,
    },
    /// End a bisection and return its nodes
    Abort {
        /// Bisection ID
        bisection: BisectionId,
    },
}

/// A new bisection.
#[derive(Debug, Args)]
struct StartBisectionArgs {
    /// Spare nodes of one profile, such as gpu[01-02]
    #[arg(value_name = "NODE", required = true)]
    nodes: Vec<Hostlist>,
    /// Generation of the profile that is good
    #[arg(long, value_name = "GENERATION", required = true)]
    good: Option<String>,
    /// Newer generation of the profile that is bad
    #[arg(long, value_name = "GENERATION", required = true)]
    bad: Option<String>,
    /// Program of the site that decides: 0 is good
    #[arg(long, value_name = "PROGRAM", required = true)]
    check: Option<ProgramName>,
    /// Runs of the check on each boot
    #[arg(long, value_name = "NUMBER", default_value_t = 2)]
    runs: u32,
    /// Boot the last good and the first bad once more
    #[arg(long)]
    verify: bool,
    /// Time from reboot to the result of the check
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "45m")]
    node_timeout: Duration,
    /// Time of health before the check
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    soak: Duration,
    /// Skip the confirmation
    #[arg(long, short)]
    yes: bool,
    /// Return when the bisection has started
    #[arg(long)]
    no_wait: bool,
}

impl Bisect {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        wait(async {
            match self.command {
                None => start(&client, self.start).await,
                Some(BisectCommand::List { output }) => {
                    let path = api::LIST_BISECTIONS.path([]).with("sort", "started_at");
                    let found = client.get(path).await?;
                    output.print(&found, |found| text::bisection_rows(found))
                }
                Some(BisectCommand::Show { bisection, output }) => {
                    let found = client.get(api::GET_BISECTION.path([&bisection])).await?;
                    output.print(&found, text::bisection)
                }
                Some(BisectCommand::Follow { bisection }) => {
                    follow_bisection(&client, bisection).await
                }
                Some(BisectCommand::Abort { bisection }) => {
                    let path = api::ABORT_BISECTION.path([&bisection]);
                    let aborted = client.post(path, &()).await?;
                    message!("bisection {}: {}", aborted.id, aborted.state.as_str());
                    Ok(())
                }
            }
        })
    }
}

async fn start(client: &AdminClient, args: StartBisectionArgs) -> Result<(), Failure> {
    let missing =
        || Failure::new("a bisection needs nodes, --good, --bad and --check", "see --help");
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let request = StartBisection {
        hostlist: joined(&args.nodes)?,
        good: args.good.ok_or_else(missing)?,
        bad: args.bad.ok_or_else(missing)?,
        check: args.check.ok_or_else(missing)?,
        runs: args.runs,
        verify: args.verify,
        node_timeout_s: seconds(args.node_timeout),
        soak_s: seconds(args.soak),
    };
    if !args.yes {
        confirm(&format!("Reboot {} again and again?", request.hostlist))?;
    }
    let started = client.post(api::START_BISECTION.path([]), &request).await?;
    let id = started.id;
    if args.no_wait {
        message!("bisection {id}; to follow it: meshd bisect follow {id}");
        return Ok(());
    }
    message!("bisection {id}; to end it: meshd bisect abort {id}");
    follow_bisection(client, id).await
}

/// Prints each boot and its verdict. Fails unless the first bad generation is found.
async fn follow_bisection(client: &AdminClient, id: BisectionId) -> Result<(), Failure> {
    let path = || api::GET_BISECTION.path([&id]);
    let found: BisectionView =
        follow_record(client, path, |found: &BisectionView| RecordProgress {
            line: format!("bisection {id}: {}", text::bisection_progress(found)),
            is_over: found.state.is_final(),
        })
        .await?;
    if found.state == BisectionState::Done {
        return Ok(());
    }
    let reason = found.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    let message = format!("bisection {id} is {}{reason}", found.state.as_str());
    Err(Failure::new(message, format!("see: meshd bisect show {id}")))
}
