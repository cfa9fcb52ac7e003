//! `meshd rollout`: planned changes of many nodes.
//!
//! | module | content |
//! | --- | --- |
//! | `bisect` | `meshd bisect`: the first bad generation of a profile |
//! | `options` | nodes, change and policy of a new rollout |
//! | `text` | plans and rollouts as text |

mod bisect;
mod options;
mod text;

pub(super) use bisect::Bisect;

use super::{
    Context, Failure,
    client::{AdminClient, RecordProgress, follow_record},
    node::targets::{NamedTargets, Targets, count_text},
    output::list::{ListOutput, TimeFilter},
    output::print::{Output, confirm, confirm_typed_number, write},
    wait,
};
use clap::{Args, Subcommand};
use meshd_api::{
    RolloutNodeView, RolloutPlan, RolloutView, StartRollout, UndoRollout, routes as api,
};
use meshd_model::rollouts::{Amount, NodeStage, RolloutPolicy, RolloutState, RolloutTarget};
use meshd_types::RolloutId;
use options::RolloutOptions;

/// Maximum number of nodes that `show` lists.
const SHOWN_NODES: usize = 200;

/// A rollout changes many nodes in waves, with canaries and a capacity floor.
#[derive(Debug, Subcommand)]
pub(super) enum RolloutCommand {
    /// Show waves and steps, and change nothing
    Plan {
        #[command(flatten)]
        options: RolloutOptions,
        #[command(flatten)]
        output: Output,
    },
    /// Start a rollout
    Start(StartRolloutArgs),
    /// List rollouts, the newest last
    List {
        #[command(flatten)]
        output: ListOutput,
        #[command(flatten)]
        time: TimeFilter,
    },
    /// Show a rollout, its waves and its nodes
    Show {
        /// Rollout ID
        rollout: RolloutId,
        #[command(flatten)]
        output: Output,
    },
    /// Follow a rollout to its end
    Follow {
        /// Rollout ID
        rollout: RolloutId,
    },
    /// Let no further node begin
    Pause {
        /// Rollout ID
        rollout: RolloutId,
    },
    /// Continue a paused rollout
    Resume {
        /// Rollout ID
        rollout: RolloutId,
    },
    /// End a rollout; nodes in progress are finished
    Abort {
        /// Rollout ID
        rollout: RolloutId,
    },
    /// Take a rollout back, by another rollout
    Undo(UndoArgs),
}

/// A new rollout.
#[derive(Debug, Args)]
pub(super) struct StartRolloutArgs {
    #[command(flatten)]
    options: RolloutOptions,
    #[command(flatten)]
    confirmation: Confirmation,
    /// Show waves and steps, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// A rollout to take back.
#[derive(Debug, Args)]
pub(super) struct UndoArgs {
    /// Rollout ID
    rollout: RolloutId,
    #[command(flatten)]
    confirmation: Confirmation,
}

/// Confirmation of a rollout.
#[derive(Debug, Args)]
pub(super) struct Confirmation {
    /// Skip the confirmation
    #[arg(long, short)]
    yes: bool,
    /// Number of all nodes, to change all at once
    #[arg(long, value_name = "NUMBER")]
    all_at_once: Option<u32>,
    /// Follow the rollout to its end
    #[arg(long)]
    wait: bool,
    /// The command has no option for the number of nodes
    #[arg(skip)]
    is_small_form: bool,
}

impl RolloutCommand {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        wait(async {
            match self {
                RolloutCommand::Plan { options, output } => plan(&client, options, output).await,
                RolloutCommand::Start(args) => start(&client, args).await,
                RolloutCommand::List { output, time } => {
                    let path = api::LIST_ROLLOUTS.path([]).with("sort", "started_at");
                    let mut found = client.get(path).await?;
                    found.retain(|rollout| time.includes(rollout.started_at));
                    output.print(&found, |found| text::rows(found))
                }
                RolloutCommand::Show { rollout, output } => show(&client, rollout, output).await,
                RolloutCommand::Follow { rollout } => follow_rollout(&client, rollout).await,
                RolloutCommand::Pause { rollout } => {
                    print_state(&client.post(api::PAUSE_ROLLOUT.path([&rollout]), &()).await?);
                    Ok(())
                }
                RolloutCommand::Resume { rollout } => {
                    print_state(&client.post(api::RESUME_ROLLOUT.path([&rollout]), &()).await?);
                    Ok(())
                }
                RolloutCommand::Abort { rollout } => {
                    print_state(&client.post(api::ABORT_ROLLOUT.path([&rollout]), &()).await?);
                    Ok(())
                }
                RolloutCommand::Undo(args) => undo(&client, args).await,
            }
        })
    }
}

fn print_state(rollout: &RolloutView) {
    message!("rollout {}: {}", rollout.id, rollout.state.as_str());
}

async fn plan(
    client: &AdminClient,
    options: RolloutOptions,
    output: Output,
) -> Result<(), Failure> {
    let plan = client.post(api::PLAN_ROLLOUT.path([]), &options.request(None)?).await?;
    output.print(&plan, text::plan)
}

async fn start(client: &AdminClient, args: StartRolloutArgs) -> Result<(), Failure> {
    let StartRolloutArgs { options, confirmation, dry_run } = args;
    start_request(client, options.request(confirmation.all_at_once)?, &confirmation, dry_run).await
}

/// Shows the plan of a rollout, asks for confirmation, and starts it.
async fn start_request(
    client: &AdminClient,
    mut request: StartRollout,
    confirmation: &Confirmation,
    dry_run: bool,
) -> Result<(), Failure> {
    let plan: RolloutPlan = client.post(api::PLAN_ROLLOUT.path([]), &request).await?;
    if dry_run {
        return write(&text::plan(&plan));
    }
    message!("{}", text::plan(&plan).trim_end());
    request.all_at_once = confirmation.confirm(plan.rollout.waves, plan.rollout.nodes)?;
    let started = client.post(api::START_ROLLOUT.path([]), &request).await?;
    confirmation.report(client, &started).await
}

/// Reboots nodes in waves of one size, without canaries.
pub(super) fn reboot_in_waves(
    context: &Context,
    targets: Targets,
    wave: Amount,
    confirmation: Confirmation,
) -> Result<(), Failure> {
    let NamedTargets { hostlist, selector, dry_run } = targets.into_names()?;
    let request = StartRollout {
        hostlist,
        label: selector,
        group: None,
        profile: None,
        target: RolloutTarget::Reboot,
        policy: RolloutPolicy { canaries: 0, wave, ..RolloutPolicy::default() },
        all_at_once: None,
    };
    let client = context.client()?;
    wait(start_request(&client, request, &confirmation, dry_run))
}

async fn undo(client: &AdminClient, args: UndoArgs) -> Result<(), Failure> {
    let UndoArgs { rollout, confirmation } = args;
    let undone = client.get(api::GET_ROLLOUT.path([&rollout])).await?;
    let nodes = client.get(api::LIST_ROLLOUT_NODES.path([&rollout])).await?;
    // A node that ran the profile already did not begin.
    let is_changed = |node: &&RolloutNodeView| {
        node.began_at.is_some() && matches!(node.stage, NodeStage::Done | NodeStage::Failed)
    };
    let changed = u32::try_from(nodes.iter().filter(is_changed).count()).unwrap_or(u32::MAX);
    message!("nodes that return to what they ran: {changed}");
    let all_at_once = confirmation.confirm(undone.waves, changed)?;
    let request = UndoRollout { all_at_once };
    let started = client.post(api::UNDO_ROLLOUT.path([&rollout]), &request).await?;
    confirmation.report(client, &started).await
}

impl Confirmation {
    pub(super) fn new(yes: bool, wait: bool) -> Self {
        Confirmation { yes, all_at_once: None, wait, is_small_form: true }
    }

    /// Asks for confirmation. A rollout of one wave needs the number of nodes, whatever `--yes`
    /// says.
    fn confirm(&self, waves: u32, nodes: u32) -> Result<Option<u32>, Failure> {
        if waves == 1 && nodes > 1 {
            if self.all_at_once.is_none() {
                let question = format!("All {nodes} nodes leave service at the same time.");
                let hint = if self.is_small_form {
                    format!(
                        "use a smaller --max, or `meshd rollout start --reboot --all-at-once {nodes}`"
                    )
                } else {
                    format!("use --all-at-once {nodes}, or smaller waves")
                };
                let no_terminal = "aborted: no terminal to confirm the number of nodes";
                confirm_typed_number(&question, nodes as usize, (no_terminal, &hint))?;
                return Ok(Some(nodes));
            }
            return Ok(self.all_at_once);
        }
        if !self.yes {
            confirm(&format!("Start the rollout over {}?", count_text(nodes as usize)))?;
        }
        // The return of a few nodes has one wave, also if the rollout had several.
        Ok(self.all_at_once)
    }

    async fn report(&self, client: &AdminClient, started: &RolloutView) -> Result<(), Failure> {
        let id = started.id;
        if self.wait {
            message!("rollout {id}; to pause it: meshd rollout pause {id}");
            return follow_rollout(client, id).await;
        }
        message!("rollout {id}; to follow it: meshd rollout follow {id}");
        Ok(())
    }
}

async fn show(client: &AdminClient, id: RolloutId, output: Output) -> Result<(), Failure> {
    let rollout = client.get(api::GET_ROLLOUT.path([&id])).await?;
    let nodes = client.get(api::LIST_ROLLOUT_NODES.path([&id]).with("sort", "wave")).await?;
    let whole = serde_json::json!({ "rollout": rollout, "nodes": nodes });
    output.print(&whole, |_| text::rollout(&rollout, &nodes, SHOWN_NODES))
}

/// Prints the progress of a rollout. Fails unless the rollout is done.
async fn follow_rollout(client: &AdminClient, id: RolloutId) -> Result<(), Failure> {
    let path = || api::GET_ROLLOUT.path([&id]);
    let rollout: RolloutView =
        follow_record(client, path, |rollout: &RolloutView| RecordProgress {
            line: format!("rollout {id}: {}", text::progress(rollout)),
            is_over: rollout.state.is_final(),
        })
        .await?;
    if rollout.state == RolloutState::Done {
        return Ok(());
    }
    let reason = rollout.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    let message = format!("rollout {id} is {}{reason}", rollout.state.as_str());
    let hint = format!("look at its nodes: meshd rollout show {id}");
    Err(Failure::new(message, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_all_nodes_is_sent_whatever_the_waves_of_the_undone_rollout() {
        for waves in [1, 4] {
            let confirmation =
                Confirmation { all_at_once: Some(2), ..Confirmation::new(true, false) };
            assert_eq!(confirmation.confirm(waves, 2).unwrap(), Some(2), "{waves}");
        }
    }
}
