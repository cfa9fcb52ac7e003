//! `meshd boot-times`: the steps of a boot, compared with other boots, and what costs the time.

use crate::cli::{
    Context, Failure,
    client::AdminClient,
    node::targets::joined,
    output::print::{Output, fields, span, table, wrapped},
    wait,
};
use clap::Args;
use meshd_api::{BootDelayView, BootTimesView, NodeView, routes as api};
use meshd_types::{BootSessionId, Hostlist};
use std::time::Duration;

/// Show where the minutes of boots go
#[derive(Debug, Args)]
pub(crate) struct BootTimes {
    /// Nodes or hostlists, such as gpu[01-40] [default: all]
    #[arg(value_name = "NODE")]
    nodes: Vec<Hostlist>,
    /// Boot session of a single node [default: the newest]
    #[arg(long, value_name = "ID")]
    session: Option<BootSessionId>,
    #[command(flatten)]
    output: Output,
}

impl BootTimes {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        wait(async {
            if let [one] = self.nodes.as_slice()
                && let Some(node) = one.as_word()
            {
                let path = api::GET_NODE_BOOT_TIMES.path([&node]);
                let times = client.get(path.with_optional("session", self.session)).await?;
                return self.output.print(&times, boot_times);
            }
            if self.session.is_some() {
                return Err(Failure::new(
                    "a boot session belongs to one node",
                    "name the node of the session",
                ));
            }
            self.output.print(&self.newest(&client).await?, |boots| overview(boots))
        })
    }

    /// Returns the newest boot of each node that has one.
    async fn newest(&self, client: &AdminClient) -> Result<Vec<BootTimesView>, Failure> {
        let named = if self.nodes.is_empty() { None } else { Some(joined(&self.nodes)?) };
        let path = api::LIST_NODES.path([]).with_optional("nodes", named).with("sort", "name");
        let nodes: Vec<NodeView> = client.get(path).await?;
        let mut boots = Vec::with_capacity(nodes.len());
        for node in nodes.iter().filter(|node| node.boot.is_some()) {
            boots.push(client.get(api::GET_NODE_BOOT_TIMES.path([&node.id])).await?);
        }
        Ok(boots)
    }
}

fn millis(millis: u64) -> String {
    span(Duration::from_millis(millis))
}

/// Formats one boot: a row for each step, then what to change.
pub(crate) fn boot_times(boot: &BootTimesView) -> String {
    let count = |count: usize, of: &str| format!("{count} {of}");
    let mut out = fields([
        ("node", format!("{} ({})", boot.name, boot.node)),
        ("boot session", boot.session.to_string()),
        ("mac", boot.mac.to_string()),
        ("model", boot.model.clone()),
        ("order", boot.order.clone().unwrap_or_default()),
        ("began", boot.begun_at.to_string()),
        ("result", boot.result.as_str().to_owned()),
        ("took", millis(boot.total_ms)),
        ("own boots", count(boot.own_boots, "before this one")),
        ("model boots", count(boot.model_boots, "of other machines")),
    ]);
    let rows = boot.steps.iter().map(|step| {
        let median = |median: Option<u64>| median.map(millis).unwrap_or_default();
        let finding = boot.delay_of(&step.step).map(|delay| delay.kind.as_str().to_owned());
        [
            step.step.clone(),
            millis(step.duration_ms),
            median(step.own_median_ms),
            median(step.model_median_ms),
            finding.unwrap_or_default(),
        ]
    });
    out += &format!("\n{}", table(["stage", "this boot", "own median", "model", "finding"], rows));
    for delay in &boot.delays {
        let BootDelayView { kind, step, cost_ms, detail, setting } = delay;
        out += &format!("\n{} costs {} in {step}\n", kind.as_str(), millis(*cost_ms));
        out += &wrapped(detail, 2);
        out += &wrapped(&format!("change: {setting}"), 2);
    }
    if boot.delays.is_empty() {
        out += "\nno delay was found\n";
    }
    out
}

/// Formats the newest boots of several nodes: a row for each, with its largest delay.
fn overview(boots: &[BootTimesView]) -> String {
    let rows = boots.iter().map(|boot| {
        let delay = boot.delays.first();
        let text = |of: fn(&BootDelayView) -> String| delay.map(of).unwrap_or_default();
        [
            boot.name.clone(),
            boot.result.as_str().to_owned(),
            millis(boot.total_ms),
            text(|delay| delay.step.clone()),
            text(|delay| delay.kind.as_str().to_owned()),
            text(|delay| millis(delay.cost_ms)),
        ]
    });
    table(["node", "result", "took", "stage", "finding", "cost"], rows)
}
