//! `meshd slot`: approves and releases slots.

use crate::cli::{
    Context, Failure,
    client::{AdminClient, NodeNames},
    output::list::ListOutput,
    output::print::{self, Output, fields, table},
    wait,
};
use clap::Subcommand;
use meshd_api::{ApproveSlot, SlotView, routes as api};
use meshd_model::work::DeviceChoice;
use meshd_proto::DiskIdentity;
use meshd_types::MacAddr;
use std::net::Ipv4Addr;

/// A slot is named by its node and its unit: NODE/0000:41:00.0.
#[derive(Debug, Subcommand)]
pub(crate) enum SlotCommand {
    /// List slots
    List {
        #[command(flatten)]
        output: ListOutput,
    },
    /// Show a slot
    Show {
        /// Slot: NODE/UNIT
        slot: String,
        #[command(flatten)]
        output: Output,
    },
    /// Approve a slot with its current hardware
    Approve {
        /// Slot: NODE/UNIT
        slot: String,
        /// Disk of the slot: WWID, serial number or `nearest`
        #[arg(long, value_name = "ID")]
        disk: Option<DeviceChoice<DiskIdentity>>,
        /// Fabric device of the slot, or `nearest`
        #[arg(long, value_name = "NAME")]
        fabric: Option<DeviceChoice<String>>,
        /// MAC address for NICs with `slot = true`
        #[arg(long, value_name = "MAC")]
        mac: Option<MacAddr>,
        /// IPv4 address for NICs with `slot = true`
        #[arg(long, value_name = "IPV4", requires = "mac")]
        address: Option<Ipv4Addr>,
    },
    /// Disable a slot for new VMs
    Disable {
        /// Slot: NODE/UNIT
        slot: String,
    },
    /// Enable a disabled slot
    Enable {
        /// Slot: NODE/UNIT
        slot: String,
    },
    /// Retry the cleanup of a slot
    Release {
        /// Slot: NODE/UNIT
        slot: String,
    },
}

impl SlotCommand {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        wait(async {
            match self {
                SlotCommand::List { output } => {
                    let all = client.get(api::LIST_SLOTS.path([])).await?;
                    let names = client.node_names_for(*output).await;
                    output.print(&all, |all| list(all, &names))
                }
                SlotCommand::Show { slot, output } => {
                    let (node, unit) = parse_slot(&slot)?;
                    let slot = client.get(api::GET_SLOT.path([&node, &unit])).await?;
                    let names = client.node_names_for(output).await;
                    output.print(&slot, |slot| show(slot, &names))
                }
                SlotCommand::Approve { slot, disk, fabric, mac, address } => {
                    let parts = ApproveSlot { disk, fabric, mac, address };
                    let (node, unit) = parse_slot(&slot)?;
                    print_state(&client.post(api::APPROVE_SLOT.path([&node, &unit]), &parts).await?)
                }
                SlotCommand::Disable { slot } => order(&client, &slot, &api::DISABLE_SLOT).await,
                SlotCommand::Enable { slot } => order(&client, &slot, &api::ENABLE_SLOT).await,
                SlotCommand::Release { slot } => order(&client, &slot, &api::RELEASE_SLOT).await,
            }
        })
    }
}

/// Splits NODE/UNIT into the node and the unit.
fn parse_slot(slot: &str) -> Result<(&str, &str), Failure> {
    slot.split_once('/').ok_or_else(|| {
        Failure::new(
            format!("`{slot}` names no slot"),
            "write NODE/0000:41:00.0, as `meshd slot list` shows it",
        )
    })
}

type SlotOrder = api::Post<api::Empty, api::Object<SlotView>, 2>;

async fn order(client: &AdminClient, slot: &str, route: &SlotOrder) -> Result<(), Failure> {
    let (node, unit) = parse_slot(slot)?;
    print_state(&client.post(route.path([&node, &unit]), &()).await?)
}

fn print_state(slot: &SlotView) -> Result<(), Failure> {
    let reason = if slot.reason.is_empty() { String::new() } else { format!(": {}", slot.reason) };
    message!("slot {} is {}{reason}", slot.id, slot.state.as_str());
    Ok(())
}

fn list(all: &[SlotView], names: &NodeNames) -> String {
    let rows = all.iter().map(|slot| {
        let numa = slot.numa.map(|node| node.to_string()).unwrap_or_default();
        let functions: Vec<&str> = slot.functions.values().map(String::as_str).collect();
        let disk = part(slot.disk.as_ref(), slot.near_disk.as_ref(), slot.approved);
        let fabric = part(slot.fabric.as_ref(), slot.near_fabric.as_ref(), slot.approved);
        let why = [slot.reason.as_str(), slot.mismatch.as_str()];
        let why: Vec<&str> = why.into_iter().filter(|text| !text.is_empty()).collect();
        [
            slot.id.to_string(),
            names.label(slot.id.node),
            slot.state.as_str().to_owned(),
            functions.join(" "),
            numa,
            disk,
            fabric,
            print::clean(&why.join("; ")),
        ]
    });
    table(["slot", "node", "state", "devices", "numa", "disk", "fabric", "reason"], rows)
}

/// Formats the disk or fabric device of a slot. Before approval, formats the nearest device in
/// brackets.
fn part(own: Option<&impl ToString>, near: Option<&String>, approved: bool) -> String {
    match (own, near) {
        (Some(own), _) => own.to_string(),
        (None, Some(near)) if !approved => format!("({})", print::clean(near)),
        _ => String::new(),
    }
}

fn show(slot: &SlotView, names: &NodeNames) -> String {
    let functions =
        slot.functions.iter().map(|(address, ids)| format!("{address} {ids}")).collect::<Vec<_>>();
    fields([
        ("slot", slot.id.to_string()),
        ("node", names.label(slot.id.node)),
        ("state", slot.state.as_str().to_owned()),
        ("reason", slot.reason.clone()),
        ("approved", slot.approved.to_string()),
        ("devices", functions.join(", ")),
        ("numa", slot.numa.map(|node| node.to_string()).unwrap_or_default()),
        ("disk", slot.disk.as_ref().map(ToString::to_string).unwrap_or_default()),
        ("fabric", slot.fabric.clone().unwrap_or_default()),
        ("mac", slot.mac.map(|mac| mac.to_string()).unwrap_or_default()),
        ("address", slot.address.map(|address| address.to_string()).unwrap_or_default()),
        ("nearest disk", print::clean(slot.near_disk.as_deref().unwrap_or_default())),
        ("nearest fabric", print::clean(slot.near_fabric.as_deref().unwrap_or_default())),
        ("mismatch", print::clean(&slot.mismatch)),
    ])
}
