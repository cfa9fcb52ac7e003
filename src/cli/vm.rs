//! `meshd vm`: virtual machines by an operator's word.

use super::{
    Context, Failure,
    client::{Client, segment},
    console,
    node::word,
    print::{self, Output, ago, confirm, fields, now, table},
    wait,
};
use crate::config;
use crate::id::SystemUuid;
use crate::serve::admin::view::{CreateVm, DeleteVm, VmView};
use crate::wire::vm::VmFetching;
use clap::Subcommand;
use std::path::PathBuf;

/// A virtual machine is named by its name or its UUID.
#[derive(Debug, Subcommand)]
pub(super) enum Vm {
    /// Give a virtual machine a node, by what it needs; its file is checked in full first
    Create {
        /// Its vm.toml
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// The only node that it may be placed on: ID or name
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// Start it at once
        #[arg(long)]
        start: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Run it
    Start {
        /// Name or UUID
        vm: String,
    },
    /// Switch it off: the guest is asked first, and ended when its time is over
    Stop {
        /// Name or UUID
        vm: String,
    },
    /// Stop it and run it again
    Restart {
        /// Name or UUID
        vm: String,
    },
    /// All virtual machines, also those that nodes have and nobody ordered
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Everything that is known of one
    Show {
        /// Name or UUID
        vm: String,
        #[command(flatten)]
        output: Output,
    },
    /// Sit at its serial console; Ctrl-] leaves
    Console {
        /// Name or UUID
        vm: String,
        /// Only look: nothing is typed
        #[arg(long)]
        no_input: bool,
    },
    /// What it wrote to its serial console, as long as it is kept
    Logs {
        /// Name or UUID
        vm: String,
        /// Go on with what it writes
        #[arg(long, short)]
        follow: bool,
    },
    /// End it and remove all that it has
    Delete {
        /// Name or UUID
        vm: String,
        /// What this node has of it that is not on record there
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

impl Vm {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        // What is wrong with the file is said before anybody is asked for anything.
        let file = match &self {
            Vm::Create { file, .. } => Some(config::vm::load(file, fresh()?)?),
            _ => None,
        };
        let client = context.client()?;
        wait(async {
            match self {
                Vm::Create { node, start, output, .. } => {
                    let vm = file.expect("read above");
                    let vm: VmView = client.post("/v1/vms", &CreateVm { vm, node, start }).await?;
                    output.print(&vm, show)
                }
                Vm::Start { vm } => order(&client, &vm, "start").await,
                Vm::Stop { vm } => order(&client, &vm, "stop").await,
                Vm::Restart { vm } => order(&client, &vm, "restart").await,
                Vm::List { output } => {
                    let all: Vec<VmView> = client.get("/v1/vms").await?;
                    output.print(&all, |all| list(all))
                }
                Vm::Show { vm, output } => {
                    let vm: VmView = client.get(&path(&vm, "")).await?;
                    output.print(&vm, show)
                }
                Vm::Console { vm, no_input } => console::console(&client, &vm, !no_input).await,
                Vm::Logs { vm, follow } => console::logs(&client, &vm, follow).await,
                Vm::Delete { vm, node, yes } => {
                    if !yes {
                        confirm(&format!("{vm} ends, and all that it wrote is lost. Delete it?"))?;
                    }
                    let gone: VmView = client.post(&path(&vm, "/delete"), &DeleteVm { node }).await?;
                    match gone.node {
                        Some(node) => eprintln!("{} ({}) is being released by {node}", gone.name, gone.uuid),
                        None => eprintln!("{} ({}) is gone", gone.name, gone.uuid),
                    }
                    Ok(())
                }
            }
        })
    }
}

/// A random UUID, version 4 (RFC 9562).
fn fresh() -> Result<SystemUuid, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Failure::new(format!("no randomness: {error}"), "write a uuid"))?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(SystemUuid(bytes))
}

/// The path of a virtual machine.
pub(super) fn path(vm: &str, rest: &str) -> String {
    format!("/v1/vms/{}{rest}", segment(vm))
}

async fn order(client: &Client, vm: &str, verb: &str) -> Result<(), Failure> {
    let vm: VmView = client.post(&path(vm, &format!("/{verb}")), &()).await?;
    let node = vm.node.map_or_else(|| "no node has it".to_owned(), |node| format!("on {node}"));
    eprintln!("{} ({}): {verb} is ordered, {node}; it is {}", vm.name, vm.uuid, vm.state.as_str());
    Ok(())
}

fn list(all: &[VmView]) -> String {
    let rows = all.iter().map(|vm| {
        let node = vm.node.map(|node| node.to_string()).unwrap_or_default();
        let known = if vm.wish.is_some() { "" } else { " (not on record)" };
        let since = vm.since.map(|since| ago(since, now())).unwrap_or_default();
        let state = format!("{}{known}", vm.state.as_str());
        [vm.name.to_string(), state, node, vm.vcpus.to_string(), vm.memory.to_string(), vm.units.join(" "), since]
    });
    table(["name", "state", "node", "vcpus", "memory", "units", "since"], rows)
}

fn show(vm: &VmView) -> String {
    let wish = vm.wish.as_ref().map_or_else(|| "it is not on record".to_owned(), word);
    let volumes: Vec<String> = vm.volumes.iter().map(|volume| volume.name.to_string()).collect();
    let nics = vm.nics.iter().map(|nic| {
        let at = nic.bridge.as_ref().map_or_else(|| "private".to_owned(), ToString::to_string);
        let address = nic.address.map(|address| format!(" {address}")).unwrap_or_default();
        format!("{}{address} ({at})", nic.mac)
    });
    let failure = vm.failure.as_ref().map(|failure| format!("{}: {}", word(&failure.kind), failure.detail));
    let fetching = vm
        .fetching
        .map(|VmFetching { bytes, of }| format!("{} of {} of its volumes", print::bytes(bytes), print::bytes(of)));
    let mut out = fields([
        ("name", vm.name.to_string()),
        ("uuid", vm.uuid.to_string()),
        ("state", vm.state.as_str().to_owned()),
        ("wish", wish),
        ("node", vm.node.map(|node| node.to_string()).unwrap_or_default()),
        ("fetching", fetching.unwrap_or_default()),
        ("trouble", vm.trouble.clone().unwrap_or_default()),
        ("failure", failure.unwrap_or_default()),
        ("restarts", vm.restarts.to_string()),
        ("vcpus", vm.vcpus.to_string()),
        ("memory", vm.memory.to_string()),
        ("wants", vm.wants.join(" ")),
        ("units", vm.units.join(" ")),
        ("volumes", volumes.join(" ")),
        ("nics", nics.collect::<Vec<_>>().join(", ")),
        ("on node loss", vm.on_node_loss.as_str().to_owned()),
        ("created", vm.created_at.map(|at| at.to_string()).unwrap_or_default()),
    ]);
    for line in vm.failure.iter().flat_map(|failure| &failure.log) {
        out += &format!("  {}\n", print::clean(line));
    }
    out
}
