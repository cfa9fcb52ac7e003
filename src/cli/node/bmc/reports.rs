//! `meshd node sensors|sel|firmware|console`: what the BMCs of nodes report.

use crate::cli::node::targets::{NamedNodes, one_node};
use crate::cli::{
    Failure,
    client::AdminClient,
    output::{
        print::{Output, confirm, table},
        writer::RawOutput,
    },
    vm::console::{ConsolePath, console},
};
use clap::Args;
use meshd_api::{BmcEventView, FirmwareView, SensorView, routes as api};
use meshd_types::Hostlist;

#[derive(Debug, Args)]
pub(crate) struct BmcReportArgs {
    #[command(flatten)]
    nodes: NamedNodes,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct EventLogArgs {
    #[command(flatten)]
    report: BmcReportArgs,
    /// Delete all events
    #[arg(long)]
    clear: bool,
    /// Skip the confirmation of --clear
    #[arg(long, short, requires = "clear")]
    yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SerialConsoleArgs {
    /// Node ID or name
    node: Hostlist,
    /// Show output only
    #[arg(long)]
    no_input: bool,
    #[command(flatten)]
    raw: RawOutput,
}

impl SerialConsoleArgs {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let node = one_node(client, &self.node).await?;
        let path = api::OPEN_NODE_CONSOLE.path([&node]).as_str().to_owned();
        let path = ConsolePath { path, title: &node };
        console(client, path, !self.no_input, self.raw).await
    }
}

impl BmcReportArgs {
    pub(crate) async fn sensors(self, client: &AdminClient) -> Result<(), Failure> {
        let get = async |node: &str| client.get(api::LIST_NODE_SENSORS.path([&node])).await;
        self.nodes.print(client, self.output, get, |sensors| sensor_rows(sensors)).await
    }

    pub(crate) async fn firmware(self, client: &AdminClient) -> Result<(), Failure> {
        let get = async |node: &str| client.get(api::LIST_NODE_FIRMWARE.path([&node])).await;
        self.nodes.print(client, self.output, get, |versions| firmware_rows(versions)).await
    }
}

impl EventLogArgs {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let BmcReportArgs { nodes, output } = self.report;
        if !self.clear {
            let get = async |node: &str| client.get(api::LIST_NODE_BMC_EVENTS.path([&node])).await;
            return nodes.print(client, output, get, |events| event_rows(events)).await;
        }
        let paths = nodes.paths(client).await?;
        if !self.yes {
            let titles: Vec<&str> = paths.iter().map(|node| node.title.as_str()).collect();
            confirm(&format!("{}: all events of the BMC are deleted. Delete?", titles.join(", ")))?;
        }
        for node in paths {
            client.post(api::CLEAR_NODE_BMC_EVENTS.path([&node.path]), &()).await?;
            message!("{}: the event log of the BMC is empty", node.title);
        }
        Ok(())
    }
}

fn sensor_rows(sensors: &[SensorView]) -> String {
    let rows = sensors.iter().map(|it| [it.name.clone(), it.reading.clone(), it.state.clone()]);
    table(["sensor", "reading", "state"], rows)
}

fn event_rows(events: &[BmcEventView]) -> String {
    let rows = events.iter().map(|event| {
        let BmcEventView { id, at, sensor, event, state } = event.clone();
        [id, at, sensor, event, state]
    });
    table(["id", "at", "sensor", "event", "state"], rows)
}

fn firmware_rows(versions: &[FirmwareView]) -> String {
    table(["firmware", "version"], versions.iter().map(|it| [it.name.clone(), it.version.clone()]))
}
