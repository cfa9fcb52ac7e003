//! `meshd vm`: creates, starts, stops, moves and deletes VMs.
//!
//! | module | content |
//! | --- | --- |
//! | `console` | `meshd vm console` and `meshd vm logs`: the serial console of a VM |
//! | `container` | `meshd container`: runs, stops and deletes containers |
//! | `slot` | `meshd slot`: approves and releases slots |
//! | `volume` | `meshd volume`: adds, lists and removes volume files |
//! | `wait` | `--wait` of `meshd vm`: waits until a VM reaches its desired state or fails |

pub(crate) mod console;
pub(crate) mod container;
pub(crate) mod slot;
pub(crate) mod volume;
pub(crate) mod wait;

use super::{
    Context, Failure,
    client::{AdminClient, NodeNames},
    output::{
        list::ListOutput,
        print::{self, Output, ago, confirm, fields, now, table, word},
        writer::RawOutput,
    },
    task::{Shell, open_shell},
    wait,
};
use clap::Subcommand;
use meshd_api::{CreateVm, DeleteVm, VmView, routes as api};
use meshd_proto::{
    shell::GuestUser,
    vm::{VmFetching, Volume},
};
use std::path::PathBuf;
use wait::{Until, Wait};

/// A VM is named by its name or its UUID.
#[derive(Debug, Subcommand)]
pub(super) enum Vm {
    /// Create and place a VM
    Create {
        /// VM file (vm.toml)
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Place on this node only
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// Start the VM now
        #[arg(long)]
        start: bool,
        /// Ignore a node that reports an unrecorded VM of this UUID
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        wait: Wait,
        #[command(flatten)]
        output: Output,
    },
    /// Start a VM
    Start {
        /// Name or UUID of a VM
        vm: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Shut a VM down
    Stop {
        /// Name or UUID of a VM
        vm: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Restart a VM
    Restart {
        /// Name or UUID of a VM
        vm: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// List VMs
    List {
        #[command(flatten)]
        output: ListOutput,
    },
    /// Show a VM
    Show {
        /// Name or UUID of a VM
        vm: String,
        #[command(flatten)]
        output: Output,
    },
    /// Open the serial console; Ctrl-] leaves
    Console {
        /// Name or UUID of a VM
        vm: String,
        /// Show output only
        #[arg(long)]
        no_input: bool,
        #[command(flatten)]
        raw: RawOutput,
    },
    /// Open a shell of the guest by SSH (role admin)
    Shell {
        /// Name or UUID of a VM
        vm: String,
        /// User of the guest [default: that of cloud-init, else root]
        #[arg(long, short)]
        user: Option<GuestUser>,
        /// Trust the present host key of the guest
        #[arg(long)]
        forget_host_key: bool,
    },
    /// Show the log of the serial console
    Logs {
        /// Name or UUID of a VM
        vm: String,
        /// Follow the output
        #[arg(long, short)]
        follow: bool,
        #[command(flatten)]
        raw: RawOutput,
    },
    /// Delete a VM and release its resources
    Delete {
        /// Name or UUID of a VM
        vm: String,
        /// Delete an unrecorded VM of this node
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// Skip the confirmation
        #[arg(long, short)]
        yes: bool,
        /// Skip wiping disks that cannot be wiped
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        wait: Wait,
    },
}

impl Vm {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        wait(async {
            match self {
                Vm::Create { file, node, start, force, wait, output } => {
                    let client = client.with_force(force);
                    let vm = meshd_config::vm::parse(&meshd_config::vm::read_file(&file)?, &file)?;
                    wait.check(vm.name.as_str(), vm.ready.is_some())?;
                    let mut vm =
                        client.post(api::CREATE_VM.path([]), &CreateVm { vm, node, start }).await?;
                    if start && wait.is_requested() {
                        wait.wait(&client, &vm, Until::Running).await?;
                        vm = client.get(api::GET_VM.path([&vm.uuid])).await?;
                    }
                    let names = client.node_names_for(output).await;
                    output.print(&vm, |vm| show(vm, &names))
                }
                Vm::Start { vm, wait } => {
                    order(&client, &vm, "start", &api::START_VM, wait, Until::Running).await
                }
                Vm::Stop { vm, wait } => {
                    order(&client, &vm, "stop", &api::STOP_VM, wait, Until::Off).await
                }
                Vm::Restart { vm, wait } => {
                    order(&client, &vm, "restart", &api::RESTART_VM, wait, Until::Running).await
                }
                Vm::List { output } => {
                    let all = client.get(api::LIST_VMS.path([])).await?;
                    let names = client.node_names_for(*output).await;
                    output.print(&all, |all| list(all, &names))
                }
                Vm::Show { vm, output } => {
                    let vm = client.get(api::GET_VM.path([&vm])).await?;
                    let names = client.node_names_for(output).await;
                    output.print(&vm, |vm| show(vm, &names))
                }
                Vm::Console { vm, no_input, raw } => {
                    let path = api::OPEN_VM_CONSOLE.path([&vm]).as_str().to_owned();
                    let path = console::ConsolePath { path, title: &vm };
                    console::console(&client, path, !no_input, raw).await
                }
                Vm::Shell { vm, user, forget_host_key } => {
                    let shell = Shell::of_vm(&vm, user.as_ref(), forget_host_key);
                    open_shell(&client, shell).await
                }
                Vm::Logs { vm, follow, raw } => {
                    let log = api::GET_VM_CONSOLE_LOG.path([&vm]).with("follow", follow);
                    console::logs(&client, log, raw).await
                }
                Vm::Delete { vm, node, yes, force, wait } => {
                    let client = client.with_force(force);
                    if !yes {
                        let vm = client.get(api::GET_VM.path([&vm])).await?;
                        confirm(&deletion(&vm, &client.node_names().await, force))?;
                    }
                    let gone = client.post(api::DELETE_VM.path([&vm]), &DeleteVm { node }).await?;
                    match gone.node {
                        Some(node) => {
                            let node = client.node_names().await.label(node);
                            message!("{} ({}) is being released by {node}", gone.name, gone.uuid);
                        }
                        None => message!("{} ({}) is gone", gone.name, gone.uuid),
                    }
                    wait.wait(&client, &gone, Until::Gone).await
                }
            }
        })
    }
}

/// Returns the question before the deletion of a VM.
pub(super) fn deletion(vm: &VmView, names: &NodeNames, force: bool) -> String {
    let node = vm.node.map(|node| format!(", on {}", names.label(node))).unwrap_or_default();
    let disks = match vm.wiped_disks().join(", ") {
        none if none.is_empty() => String::new(),
        disks if force => format!("\n--force: its disks are not wiped: {disks}"),
        disks => format!("\nits disks are wiped: {disks}"),
    };
    let name = &vm.name;
    let uuid = vm.uuid;
    let state = vm.state.as_str();
    format!("{name} ({uuid}, {state}{node}) is deleted with its data{disks}\nDelete it?")
}

type VmOrder = api::Post<api::Empty, api::Object<VmView>, 1>;

async fn order(
    client: &AdminClient,
    vm: &str,
    verb: &str,
    route: &VmOrder,
    wait: Wait,
    until: Until,
) -> Result<(), Failure> {
    if wait.is_requested() && until == Until::Running {
        let vm = client.get(api::GET_VM.path([&vm])).await?;
        wait.check(vm.name.as_str(), vm.ready_check.is_some())?;
    }
    let vm = client.post(route.path([&vm]), &()).await?;
    let names = client.node_names().await;
    let node = vm
        .node
        .map_or_else(|| "no node has it".to_owned(), |node| format!("on {}", names.label(node)));
    message!("{} ({}): {verb} is ordered, {node}; it is {}", vm.name, vm.uuid, vm.state.as_str());
    wait.wait(client, &vm, until).await
}

fn list(all: &[VmView], names: &NodeNames) -> String {
    let rows = all.iter().map(|vm| {
        let node = names.maybe_label(vm.node);
        let known = if vm.desired_state.is_some() { "" } else { " (not on record)" };
        let since = vm.since.map(|since| ago(since, now())).unwrap_or_default();
        let state = format!("{}{known}", vm.state.as_str());
        let addresses: Vec<String> =
            vm.nics.iter().filter_map(|nic| Some(nic.address?.to_string())).collect();
        let vcpus = vm.vcpus.to_string();
        let memory = vm.memory.to_string();
        [
            vm.name.to_string(),
            state,
            node,
            addresses.join(" "),
            vcpus,
            memory,
            vm.units.join(" "),
            since,
        ]
    });
    table(["name", "state", "node", "address", "vcpus", "memory", "units", "since"], rows)
}

fn numa(vm: &VmView) -> String {
    let bound = vm.numa_node.map(|node| node.to_string());
    let words =
        vm.numa_mismatch.then(|| "numa_mismatch: its units span several NUMA nodes".to_owned());
    bound.into_iter().chain(words).collect::<Vec<_>>().join(", ")
}

/// Returns whether the guest is ready, and by what it is known.
fn readiness(vm: &VmView) -> String {
    let state = if vm.ready == Some(true) { "yes" } else { "not yet" };
    vm.ready_check.map_or_else(String::new, |check| format!("{state} ({check})"))
}

fn show(vm: &VmView, names: &NodeNames) -> String {
    let desired_state =
        vm.desired_state.as_ref().map_or_else(|| "it is not on record".to_owned(), word);
    let volume = |volume: &Volume| match volume.source.disk() {
        Some(disk) => format!("{} (disk {disk})", volume.name),
        None => volume.name.to_string(),
    };
    let volumes: Vec<String> = vm.volumes.iter().map(volume).collect();
    let nics = vm.nics.iter().map(|nic| {
        let at = nic.bridge.as_ref().map_or_else(|| "no bridge".to_owned(), ToString::to_string);
        let address = nic.address.map(|address| format!(" {address}")).unwrap_or_default();
        match (nic.slot, vm.node) {
            (true, None) => format!("of its slot ({at})"),
            _ => format!("{}{address} ({at})", nic.mac),
        }
    });
    let failure =
        vm.failure.as_ref().map(|failure| format!("{}: {}", word(&failure.kind), failure.detail));
    let fetching = vm.fetching.as_ref().map(|VmFetching { bytes, total, obstacle, writing }| {
        let why = obstacle.as_ref().map(|why| format!("; stalled: {why}")).unwrap_or_default();
        let what = if *writing { "written onto its disks and compared" } else { "of its volumes" };
        format!("{} of {} {what}{why}", print::bytes(*bytes), print::bytes(*total))
    });
    let mut out = fields([
        ("name", vm.name.to_string()),
        ("uuid", vm.uuid.to_string()),
        ("state", vm.state.as_str().to_owned()),
        ("desired state", desired_state),
        ("node", names.maybe_label(vm.node)),
        ("fetching", fetching.unwrap_or_default()),
        ("ready", readiness(vm)),
        ("obstacle", vm.obstacle.clone().unwrap_or_default()),
        ("failure", failure.unwrap_or_default()),
        ("restarts", vm.restarts.to_string()),
        ("vcpus", vm.vcpus.to_string()),
        ("memory", vm.memory.to_string()),
        ("requested units", vm.unit_selectors.join(" ")),
        ("units", vm.units.join(" ")),
        ("numa node", numa(vm)),
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
