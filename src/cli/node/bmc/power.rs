//! `meshd node power|boot-device|identify`: orders to the BMCs of nodes.

use crate::cli::node::{
    operation::{FollowUntil, follow_operation},
    restart,
    targets::{NodeSelection, SeveralNodes, Targets, confirm_nodes, count_text},
};
use crate::cli::{
    Failure,
    client::AdminClient,
    output::print::{Output, table},
};
use clap::{Args, Subcommand, ValueEnum};
use futures_util::{StreamExt as _, stream};
use meshd_api::{
    BootDeviceOrder, BulkRequest, BulkTarget, Identify, MachineView, NodeDetail, NodeView,
    PowerOrder, PowerView,
    routes::{self as api, BulkPost},
};
use meshd_model::fleet::find_nodes;
use meshd_types::{Basis, BootDevice, NodeId, PowerAction};
use serde::Serialize;
use std::collections::BTreeMap;

/// Nodes whose BMCs are asked at the same time.
const CONCURRENT: usize = 32;

/// Switch nodes by their BMCs
#[derive(Debug, Subcommand)]
pub(crate) enum PowerCommand {
    /// Power nodes on and wait for their first packets
    On(BmcOrder),
    /// Shut nodes down, then switch off the power
    Off {
        #[command(flatten)]
        order: ConfirmedPower,
        /// Power off at once, without a shutdown
        #[arg(long)]
        now: bool,
    },
    /// Power nodes off and on; both run a new boot
    Cycle(ConfirmedPower),
    /// Reset nodes without loss of power
    Reset(ConfirmedPower),
    /// Show the power states that the BMCs report
    Status {
        #[command(flatten)]
        targets: Targets,
        #[command(flatten)]
        output: Output,
    },
}

/// Nodes of an order to their BMCs.
#[derive(Debug, Args)]
pub(crate) struct BmcOrder {
    #[command(flatten)]
    targets: Targets,
    /// Return when the order is accepted
    #[arg(long)]
    no_wait: bool,
}

/// Nodes of an order that ends their work.
#[derive(Debug, Args)]
pub(crate) struct ConfirmedPower {
    #[command(flatten)]
    order: BmcOrder,
    /// Skip the confirmation
    #[arg(long, short)]
    yes: bool,
    /// Proceed even if VMs or a task are lost
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BootDeviceArgs {
    /// Device of the next boot; none: as the firmware
    #[arg(value_enum, value_name = "DEVICE")]
    device: DeviceWord,
    #[command(flatten)]
    order: BmcOrder,
}

#[derive(Debug, Args)]
pub(crate) struct IdentifyArgs {
    /// The identification light
    #[arg(value_enum, value_name = "on|off")]
    state: Switch,
    #[command(flatten)]
    order: BmcOrder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DeviceWord {
    Pxe,
    Disk,
    Bios,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl PowerCommand {
    pub(crate) async fn run(self, client: AdminClient) -> Result<(), Failure> {
        match self {
            PowerCommand::On(order) => {
                order.send(&client, &api::POWER_NODES, &body(PowerAction::On)).await
            }
            PowerCommand::Off { order, now } => {
                let body = PowerOrder { action: PowerAction::Off, now };
                order.send(client, &body, "is powered off; its work ends. Power off?").await
            }
            PowerCommand::Cycle(order) => {
                let question = "loses its power now and boots; its work ends. Cycle?";
                order.send(client, &body(PowerAction::Cycle), question).await
            }
            PowerCommand::Reset(order) => {
                let question = "is reset now and boots; its work ends. Reset?";
                order.send(client, &body(PowerAction::Reset), question).await
            }
            PowerCommand::Status { targets, output } => status(&client, targets, output).await,
        }
    }
}

fn body(action: PowerAction) -> PowerOrder {
    PowerOrder { action, now: false }
}

impl ConfirmedPower {
    async fn send(
        self,
        client: AdminClient,
        body: &PowerOrder,
        question: &str,
    ) -> Result<(), Failure> {
        let client = &client.with_force(self.force);
        let selection = self.order.targets.select(client).await?;
        if !self.yes {
            confirm_nodes(client, &selection, question).await?;
        }
        send(client, selection, &api::POWER_NODES, body, self.order.no_wait).await
    }
}

impl BmcOrder {
    async fn send(
        self,
        client: &AdminClient,
        route: &BulkPost,
        body: &impl Serialize,
    ) -> Result<(), Failure> {
        // The server also finds machines that have not booted.
        if let Some(names) = self.targets.plain_names() {
            let order =
                serde_json::to_value(body).map_err(|error| Failure::without_hint(&error))?;
            let request = BulkRequest { nodes: Vec::new(), hostlist: Some(names?), order };
            return give(client, route, &request, self.no_wait).await;
        }
        let selection = self.targets.select(client).await?;
        send(client, selection, route, body, self.no_wait).await
    }
}

impl BootDeviceArgs {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let device = match self.device {
            DeviceWord::Pxe => BootDevice::Pxe,
            DeviceWord::Disk => BootDevice::Disk,
            DeviceWord::Bios => BootDevice::Bios,
            DeviceWord::None => BootDevice::None,
        };
        self.order.send(client, &api::SET_NODES_BOOT_DEVICE, &BootDeviceOrder { device }).await
    }
}

impl IdentifyArgs {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let body = Identify { on: self.state == Switch::On };
        self.order.send(client, &api::IDENTIFY_NODES, &body).await
    }
}

/// Reboots nodes by their agents, and those without a link by their BMCs.
pub(crate) async fn reboot(client: &AdminClient, selection: NodeSelection) -> Result<(), Failure> {
    let Some(several) = nodes_of(client, selection).await? else { return Ok(()) };
    // A node in maintenance keeps its phase without a link.
    let details = several.nodes.iter().map(|node| client.get(api::GET_NODE.path([&node.id])));
    let details: Vec<Result<NodeDetail, Failure>> =
        stream::iter(details).buffered(CONCURRENT).collect().await;
    let details = details.into_iter().collect::<Result<Vec<_>, _>>()?;
    let (linked, silent): (Vec<_>, Vec<_>) =
        details.into_iter().partition(|detail| detail.link_since.is_some());
    let [linked, silent] =
        [linked, silent].map(|details| details.into_iter().map(|it| it.node).collect::<Vec<_>>());
    // Both parts are ordered, also if one fails.
    let restarted = match linked.len() {
        0 => Ok(()),
        _ => restart(client, NodeSelection::Several(linked.into())).await,
    };
    let cycle = body(PowerAction::Cycle);
    let cycled = match silent.len() {
        0 => Ok(()),
        _ => {
            let silent = NodeSelection::Several(silent.into());
            send(client, silent, &api::POWER_NODES, &cycle, false).await
        }
    };
    let ordered = match (restarted, cycled) {
        (Err(failure), Err(other)) => {
            message!("{failure}");
            Err(other)
        }
        (restarted, cycled) => restarted.and(cycled),
    };
    several.fail_if_absent(api::REBOOT_NODES.verb(), ordered)
}

/// Returns the selected nodes; `None` if they are only listed.
async fn nodes_of(
    client: &AdminClient,
    selection: NodeSelection,
) -> Result<Option<SeveralNodes>, Failure> {
    Ok(match selection {
        NodeSelection::One(name) => {
            Some(vec![client.get(api::GET_NODE.path([&name])).await?.node].into())
        }
        NodeSelection::Several(several) => Some(several),
        NodeSelection::Listed => None,
    })
}

/// Sends an order to the BMCs of nodes, and follows it. Their revisions do not count: a machine
/// that boots changes its own all the time.
async fn send(
    client: &AdminClient,
    selection: NodeSelection,
    route: &BulkPost,
    body: &impl Serialize,
    no_wait: bool,
) -> Result<(), Failure> {
    let Some(several) = nodes_of(client, selection).await? else { return Ok(()) };
    let order = serde_json::to_value(body).map_err(|error| Failure::without_hint(&error))?;
    let target = |node: &NodeView| BulkTarget { id: node.id, revision: None };
    let targets: Vec<BulkTarget> = several.nodes.iter().map(target).collect();
    let given = match targets.len() {
        0 => Ok(()),
        _ => give(client, route, &BulkRequest::of_nodes(targets, order), no_wait).await,
    };
    several.fail_if_absent(route.verb(), given)
}

/// Gives an order, and follows it.
async fn give(
    client: &AdminClient,
    route: &BulkPost,
    request: &BulkRequest,
    no_wait: bool,
) -> Result<(), Failure> {
    let done = client.post(route.path([]), request).await?;
    let Some(operation) = done.operation else {
        let error = done.results.into_iter().find_map(|result| result.error);
        let error = error.map(|error| Failure::new(&error.message, &error.hint));
        return Err(error.unwrap_or_else(|| Failure::new("no node took the order", "")));
    };
    if no_wait {
        message!("accepted; follow it: meshd operation follow {operation}");
        return Ok(());
    }
    follow_operation(client, operation, FollowUntil::Finished).await
}

/// Returns what identifies the targets in requests for their power states: nodes by ID, machines
/// that have not booted by MAC address.
async fn status_paths(client: &AdminClient, targets: Targets) -> Result<Vec<String>, Failure> {
    let Some(names) = targets.plain_names() else {
        let several = nodes_of(client, targets.select(client).await?).await?;
        let nodes = several.into_iter().flat_map(|several| several.nodes);
        return Ok(nodes.map(|node| node.id.to_string()).collect());
    };
    let nodes = client.get(api::LIST_NODES.path([])).await?;
    let machines = client.get(api::LIST_MACHINES.path([])).await?;
    let mut paths: BTreeMap<NodeId, (String, String)> = machines
        .into_iter()
        .filter(|view| view.machine.node.is_none())
        .map(|MachineView { machine, .. }| {
            let mac = machine.mac;
            (Basis::Mac(mac).node_id(), (machine.title(), mac.to_string()))
        })
        .collect();
    paths.extend(nodes.into_iter().map(|node| (node.id, (node.name, node.id.to_string()))));
    let keys = paths.iter().map(|(id, (name, _))| (*id, name.as_str(), true));
    let found = find_nodes(&names?, keys).map_err(|error| Failure::of(&error))?;
    Ok(found.iter().filter_map(|id| Some(paths.get(id)?.1.clone())).collect())
}

async fn status(client: &AdminClient, targets: Targets, output: Output) -> Result<(), Failure> {
    let paths = status_paths(client, targets).await?;
    let requests = paths.iter().map(|path| client.get(api::GET_NODE_POWER.path([path])));
    let answers: Vec<Result<PowerView, Failure>> =
        stream::iter(requests).buffered(CONCURRENT).collect().await;
    let states = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
    output.print(&states, |states| rows(states))?;
    match states.iter().filter(|state| state.error.is_some()).count() {
        0 => Ok(()),
        failed => Err(Failure::new(
            format!("the power state of {} is unknown", count_text(failed)),
            "read the error of each node above",
        )),
    }
}

fn rows(states: &[PowerView]) -> String {
    let rows = states.iter().map(|view| {
        [
            view.id.map_or_else(|| view.name.clone(), |id| format!("{} ({id})", view.name)),
            view.state.map(|state| state.to_string()).unwrap_or_default(),
            if view.is_linked { "up" } else { "down" }.to_owned(),
            view.driver.map(|driver| driver.to_string()).unwrap_or_default(),
            view.address.clone(),
            view.error.clone().unwrap_or_default(),
        ]
    });
    table(["node", "power", "link", "driver", "BMC", "error"], rows)
}
