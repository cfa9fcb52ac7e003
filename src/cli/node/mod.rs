//! `meshd node`: lists, shows, approves and configures nodes.
//!
//! | module | content |
//! | --- | --- |
//! | `bmc` | commands that ask the BMCs of nodes: power, sensors, event log, serial console |
//! | `boot_settings` | `meshd node set/unset/boot-once`: boot settings of a node besides its profile |
//! | `boots` | `meshd boot-times` and `meshd node timeline`: the boots of a node with their times |
//! | `details` | hardware, software and VFIO units of a node, printed by `meshd node show` |
//! | `doctor` | `meshd node doctor`: runs the readiness checks of a node and prints the results |
//! | `exec` | `meshd node exec`: runs a program on nodes |
//! | `generations` | `meshd node history/diff/pin` and `meshd profile diff`: generations of nodes |
//! | `lifecycle` | `meshd node approve/reject/quarantine/release/drain/fence/maintenance/resume/remove/replace`: the life cycle of a node |
//! | `list` | `meshd node list`: nodes as a table |
//! | `machines` | `meshd node add/import/export`: machines as lists, also those that have not booted yet |
//! | `naming` | `meshd node label/rename`: labels and names of nodes |
//! | `operation` | `meshd operation`: lists, follows and cancels orders to nodes |
//! | `targets` | target nodes of a command: IDs, names, prefixes, hostlists or a label selector |
//! | `logs` | `meshd node logs`: kernel messages and system log of one boot |

pub(crate) mod bmc;
pub(crate) mod boot_settings;
pub(crate) mod boots;
mod details;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod generations;
pub(crate) mod lifecycle;
pub(crate) mod list;
pub(crate) mod machines;
pub(crate) mod naming;
pub(crate) mod operation;
pub(crate) mod targets;
pub(crate) mod logs;

use super::{
    Context, Failure,
    client::AdminClient,
    output::print::{Output, ago, bytes, fields, now, table, wrapped},
    profile::vars,
    task::{Shell, open_shell},
    wait,
};
use bmc::{power, reports};
use boots::timeline::timeline;
use clap::Subcommand;
use doctor::NodeDoctor;
use meshd_api::{AcceptNic, AssignProfile, NodeDetail, NodeView, Reboot, routes as api};
use meshd_model::{
    fleet::{NextBootOverride, label_words},
    rollouts::Amount,
};
use meshd_proto::Heartbeat;
use meshd_types::{BootSessionId, Hostlist, MacAddr, Timestamp};
use targets::{
    NamedNodes, NodeSelection, SelectorArgs, Targets, confirm_interruption, first_order, hostlists,
    missing, one_node, order,
};

/// Manage nodes by ID or name
#[derive(Debug, Subcommand)]
pub(super) enum Node {
    /// List nodes
    List(list::List),
    /// Define a machine before its first boot
    Add(machines::AddMachine),
    /// Define machines of a list before their first boot
    Import(machines::ImportFile),
    /// Print nodes for Ansible, /etc/hosts, ssh, Prometheus
    Export(machines::Export),
    /// Show a node
    Show {
        #[command(flatten)]
        nodes: NamedNodes,
        #[command(flatten)]
        output: Output,
    },
    /// Approve a node, or acknowledge its alarms
    Approve {
        #[command(flatten)]
        targets: Targets,
        /// Forget the relay port of a node that was moved
        #[arg(long)]
        moved: bool,
    },
    /// Reject a machine: refuse its boots
    Reject(lifecycle::ConfirmedOrder),
    /// Cut a node off until `node release`
    Quarantine(lifecycle::ConfirmedOrder),
    /// Stop new work on a node, then enter maintenance
    Drain(lifecycle::DrainNode),
    /// Declare a silent node dead and restart its work elsewhere
    Fence(lifecycle::FenceArgs),
    /// Put a node into maintenance now
    Maintenance(lifecycle::MaintenanceArgs),
    /// Return a node to service
    Resume(Targets),
    /// Cut a node off and delete the record
    Remove {
        #[command(flatten)]
        order: lifecycle::ConfirmedOrder,
        /// Remove machines that have not appeared
        #[arg(long, conflicts_with_all = ["selector", "dry_run", "force"])]
        expected: bool,
    },
    /// Move a node's identity to replacement hardware
    Replace(lifecycle::ReplaceNode),
    /// Accept a new NIC of a node
    AcceptNic {
        /// Node ID or name
        node: Hostlist,
        /// MAC address of the new NIC
        mac: MacAddr,
    },
    /// Assign a profile, effective at the next boot
    #[command(override_usage = "meshd node assign-profile [OPTIONS] <NODE>... <PROFILE>")]
    AssignProfile {
        /// Nodes, then the profile
        #[arg(required = true, value_name = "NODE|PROFILE")]
        words: Vec<String>,
        #[command(flatten)]
        selector: SelectorArgs,
        /// Reboot the node now
        #[arg(long)]
        reboot: bool,
        /// Skip the confirmation of --reboot
        #[arg(long, short, requires = "reboot")]
        yes: bool,
        /// Proceed even if VMs or a task are lost
        #[arg(long)]
        force: bool,
    },
    /// Set variables, effective at the next boot
    Set(boot_settings::Set),
    /// Remove variables, effective at the next boot
    Unset(boot_settings::Unset),
    /// Set and remove labels
    Label(naming::LabelArgs),
    /// Rename a node, effective at the next boot
    Rename(naming::RenameArgs),
    /// Change the next boot only
    BootOnce(boot_settings::BootOnceArgs),
    /// List the generations of a node, newest first
    History {
        #[command(flatten)]
        nodes: NamedNodes,
        #[command(flatten)]
        output: Output,
    },
    /// Compare the running and the next generation
    Diff {
        #[command(flatten)]
        nodes: NamedNodes,
        #[command(flatten)]
        output: Output,
    },
    /// Pin a node to one generation
    Pin(generations::PinArgs),
    /// Run a node's readiness checks now
    Doctor(NodeDoctor),
    /// Reboot a node
    Reboot {
        #[command(flatten)]
        targets: Targets,
        /// Reboot in waves of this size, such as 2 or 10%
        #[arg(long, value_name = "AMOUNT", conflicts_with_all = ["force", "power"])]
        max: Option<Amount>,
        /// Follow the waves to their end
        #[arg(long, requires = "max")]
        wait: bool,
        /// Skip the confirmation
        #[arg(long, short)]
        yes: bool,
        /// Proceed even if VMs or a task are lost
        #[arg(long)]
        force: bool,
        /// Cycle the power of nodes without a link
        #[arg(long)]
        power: bool,
        /// Start the next boot by kexec, without the firmware
        #[arg(long, conflicts_with_all = ["max", "power"])]
        warm: bool,
    },
    /// Switch nodes by their BMCs
    #[command(subcommand)]
    Power(power::PowerCommand),
    /// Set the device of the next boot by the BMC
    BootDevice(power::BootDeviceArgs),
    /// Switch the identification light of a node
    Identify(power::IdentifyArgs),
    /// Show the sensors of a node by its BMC
    Sensors(reports::BmcReportArgs),
    /// Show or delete the event log of a node's BMC
    Sel(reports::EventLogArgs),
    /// Show the firmware versions of a node by its BMC
    Firmware(reports::BmcReportArgs),
    /// Connect to the serial port of a node by its BMC
    Console(reports::SerialConsoleArgs),
    /// Release a node from quarantine
    Release(Targets),
    /// Run a program on a free node and return its exit code
    Exec(exec::Exec),
    /// Open a shell on a node as root (role admin)
    Shell {
        /// Node ID or name
        node: Hostlist,
    },
    /// Show kernel messages and system log of a boot
    Logs(logs::Logs),
    /// Show the stages of a node's boots with their times
    Timeline {
        #[command(flatten)]
        nodes: NamedNodes,
        /// Boot session [default: the newest]
        #[arg(long, value_name = "ID")]
        session: Option<BootSessionId>,
        #[command(flatten)]
        output: Output,
    },
}

impl Node {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        wait(async {
            match self {
                Node::Exec(exec) => exec.run(&client).await,
                Node::Shell { node } => {
                    let node = one_node(&client, &node).await?;
                    open_shell(&client, Shell::of_node(&node)).await
                }
                Node::List(list) => list.run(&client).await,
                Node::Show { nodes, output } => {
                    let get = async |node: &str| client.get(api::GET_NODE.path([&node])).await;
                    nodes.print(&client, output, get, |detail| show(detail, now())).await
                }
                Node::Timeline { nodes, session, output } => {
                    let get = async |node: &str| {
                        let path = api::GET_NODE_TIMELINE.path([&node]);
                        client.get(path.with_optional("session", session)).await
                    };
                    nodes.print(&client, output, get, timeline).await
                }
                Node::Logs(logs) => logs.run(&client).await,
                Node::Release(targets) => lifecycle::release(targets, &client).await,
                Node::Approve { targets, moved } => {
                    lifecycle::approve(targets, moved, &client).await
                }
                Node::Reject(order) => order.reject(client).await,
                Node::Quarantine(order) => order.quarantine(client).await,
                Node::Fence(order) => order.fence(&client).await,
                Node::Drain(order) => order.drain(&client).await,
                Node::Maintenance(order) => order.maintenance(client).await,
                Node::Resume(targets) => lifecycle::resume(targets, &client).await,
                Node::Remove { order, expected: true } => order.remove_expected(&client).await,
                Node::Remove { order, expected: false } => order.remove(client).await,
                Node::Add(machine) => machine.run(&client).await,
                Node::Import(import) => import.run(&client).await,
                Node::Export(export) => export.run(&client).await,
                Node::Replace(replace) => replace.run(client).await,
                Node::AcceptNic { node, mac } => {
                    let node = one_node(&client, &node).await?;
                    let node =
                        client.post(api::ACCEPT_NODE_NIC.path([&node]), &AcceptNic { mac }).await?;
                    message!("{} ({}) may boot from NIC {mac}", node.name, node.id);
                    Ok(())
                }
                Node::AssignProfile { words, selector, reboot, yes, force } => {
                    assign(&client.with_force(force), words, selector, reboot, yes).await
                }
                Node::Set(set) => set.run(&client).await,
                Node::Unset(unset) => unset.run(&client).await,
                Node::Label(label) => label.run(&client).await,
                Node::Rename(rename) => rename.run(&client).await,
                Node::BootOnce(once) => once.run(client).await,
                Node::History { nodes, output } => {
                    generations::history(&client, &nodes, output).await
                }
                Node::Diff { nodes, output } => generations::diff(&client, &nodes, output).await,
                Node::Doctor(doctor) => doctor.run(&client).await,
                Node::Power(power) => power.run(client).await,
                Node::BootDevice(device) => device.run(&client).await,
                Node::Identify(identify) => identify.run(&client).await,
                Node::Sensors(report) => report.sensors(&client).await,
                Node::Sel(log) => log.run(&client).await,
                Node::Console(console) => console.run(&client).await,
                Node::Firmware(report) => report.firmware(&client).await,
                Node::Pin(pin) => pin.run(&client).await,
                Node::Reboot { targets, yes, force, power, warm, .. } => {
                    let client = client.with_force(force);
                    let selection = targets.select(&client).await?;
                    if !yes {
                        confirm_interruption(&client, &selection, REBOOTS).await?;
                    }
                    if power {
                        return power::reboot(&client, selection).await;
                    }
                    if warm {
                        return restart_warm(&client, selection).await;
                    }
                    restart(&client, selection).await
                }
            }
        })
    }
}

/// The consequence of a reboot, for the confirmation.
const REBOOTS: &str = "reboots now; its work ends. Reboot?";

async fn assign(
    client: &AdminClient,
    mut words: Vec<String>,
    selector: SelectorArgs,
    reboot: bool,
    yes: bool,
) -> Result<(), Failure> {
    let profile = words.pop().unwrap_or_default();
    if words.is_empty() && !selector.has_selector() {
        missing("NODE or PROFILE");
    }
    let selection = selector.select(client, &hostlists(&words)).await?;
    if reboot && !yes {
        confirm_interruption(client, &selection, REBOOTS).await?;
    }
    let one = &api::ASSIGN_NODE_PROFILE;
    let several = &api::ASSIGN_NODES_PROFILE;
    let body = AssignProfile { profile };
    if !reboot {
        return order(client, selection, one, several, &body, assignment_text).await;
    }
    let changed = first_order(client, selection, one, several, &body, assignment_text).await?;
    restart(client, changed).await
}

fn assignment_text(node: &NodeView) -> String {
    let id = node.id;
    let name = &node.name;
    let profile = &node.profile;
    match (node.pinned, node.rolled_back) {
        (Some(pinned), _) => {
            let generation = pinned.0.short();
            let hint = format!("  hint: unpin it with `meshd node pin {id} --off`");
            format!(
                "{name} ({id}) has profile {profile}, and boots generation {generation} as long as it is pinned\n{hint}"
            )
        }
        (None, Some(rolled_back)) => {
            let generation = rolled_back.0.short();
            format!(
                "{name} ({id}) boots {profile} from its next boot on, as generation {generation} that it is rolled back to"
            )
        }
        (None, None) => format!("{name} ({id}) boots {profile} from its next boot on"),
    }
}

pub(super) async fn restart(client: &AdminClient, selection: NodeSelection) -> Result<(), Failure> {
    let text = |node: &NodeView| format!("{} ({}) reboots", node.name, node.id);
    order_reboot(client, selection, Reboot::default(), text).await
}

/// Reboots nodes by kexec. A node that cannot boots through its firmware.
async fn restart_warm(client: &AdminClient, selection: NodeSelection) -> Result<(), Failure> {
    let text = |node: &NodeView| {
        let NodeView { name, id, .. } = node;
        format!("{name} ({id}) reboots warm, or cold; `meshd node show {id}` has the reason")
    };
    order_reboot(client, selection, Reboot { warm: true }, text).await
}

async fn order_reboot(
    client: &AdminClient,
    selection: NodeSelection,
    body: Reboot,
    text: impl Fn(&NodeView) -> String,
) -> Result<(), Failure> {
    let one = &api::REBOOT_NODE;
    order(client, selection, one, &api::REBOOT_NODES, &body, text).await
}

fn text<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn stage(node: &NodeView) -> String {
    text(node.boot.as_ref().and_then(|boot| boot.stage).map(meshd_model::fleet::Stage::as_str))
}

pub(super) fn show(detail: &NodeDetail, now: Timestamp) -> String {
    let node = &detail.node;
    let seen = |at: Timestamp| format!("{at} ({})", ago(at, now));
    let print = &detail.fingerprint;
    let board = if print.board_serial.is_empty() {
        String::new()
    } else {
        format!("board {}", print.board_serial)
    };
    let hardware = [print.manufacturer.as_str(), &print.product, &print.serial, &board];
    let hardware: Vec<&str> = hardware.into_iter().filter(|word| !word.is_empty()).collect();
    let former: Vec<String> = detail.former.iter().map(ToString::to_string).collect();
    let macs: Vec<String> = print.macs.iter().map(ToString::to_string).collect();
    let source = if node.assigned { "assigned" } else { "the site's default" };
    let cold = detail.warm_reboot.as_ref().and_then(|reboot| reboot.cold.as_ref());
    let mut head = vec![
        ("id", node.id.to_string()),
        ("name", node.name.clone()),
        ("basis", detail.basis.to_string()),
        ("profile", format!("{} ({source})", node.profile)),
        ("phase", node.phase.to_string()),
        ("works", node.work.join(", ")),
        ("address", text(node.address)),
        ("macs", macs.join(" ")),
        ("circuit ID", text(node.circuit_id.as_ref())),
        ("remote ID", text(node.remote_id.as_ref())),
        ("hardware", hardware.join(" ")),
        ("uuid", text(print.uuid)),
        ("former IDs", former.join(" ")),
        ("quarantine reason", detail.quarantine_reason.clone().unwrap_or_default()),
        ("groups", detail.groups.iter().map(|group| group.as_str()).collect::<Vec<_>>().join(" ")),
        ("labels", label_words(&node.labels)),
        ("vars", vars(&detail.vars)),
        ("boot once", detail.boot_override.as_ref().map(override_text).unwrap_or_default()),
        ("generation", text(node.generation)),
        ("would boot", text(node.next_generation.filter(|next| Some(*next) != node.generation))),
        ("pinned to", text(node.pinned)),
        ("rolled back to", text(node.rolled_back)),
        ("boot session", text(node.boot.as_ref().map(|boot| boot.session))),
        ("stage", stage(node)),
        ("boot deferred", detail.deferred.clone().unwrap_or_default()),
        ("warm reboot", text(detail.warm_reboot.as_ref().map(|it| details::warm_result(it, now)))),
        ("warm remedy", text(cold.map(|cold| &cold.remedy))),
        ("link since", detail.link_since.map(seen).unwrap_or_default()),
        ("last seen", seen(node.last_seen)),
        ("discovered", seen(detail.discovered_at)),
    ];
    head.extend(detail.heartbeat.iter().flat_map(heartbeat));
    head.extend(detail.facts.iter().flat_map(|facts| details::rows(detail, facts)));
    let checks = detail
        .checks
        .iter()
        .map(|check| [check.name.clone(), check.status.to_string(), check.detail.clone()]);
    let mut out = fields(head);
    if !node.conditions.is_empty() {
        // A detail may contain long instructions and therefore has separate lines.
        for condition in &node.conditions {
            let words = condition.kind.words();
            let name = condition.kind.as_str();
            out += &format!("\n{words} ({name}) since {}\n", seen(condition.since));
            out += &wrapped(&condition.detail, 2);
        }
    }
    if !detail.conflicting_machines.is_empty() {
        out += "\nrefused machines that claim this identity\n";
        let machines = detail
            .conflicting_machines
            .iter()
            .map(|machine| [machine.words(), seen(machine.since), seen(machine.last)]);
        out += &table(["machine", "first", "last"], machines);
    }
    if !detail.checks.is_empty() {
        out += if detail.checks_count {
            "\n"
        } else {
            "\nchecks of an earlier boot, no longer valid\n"
        };
        out += &table(["check", "status", "detail"], checks);
    }
    out + details::units(detail).as_str()
}

/// Returns the resources of a node from a heartbeat.
fn heartbeat(beat: &Heartbeat) -> [(&'static str, String); 3] {
    [
        ("memory available", bytes(beat.memory_available_kib.saturating_mul(1 << 10))),
        ("storage free", bytes(beat.storage_free_bytes)),
        ("workloads", beat.workloads.to_string()),
    ]
}

fn override_text(once: &NextBootOverride) -> String {
    let state = once
        .used_by
        .map_or_else(|| "at its next boot".to_owned(), |session| format!("used by boot {session}"));
    format!("{} ({state})", once.words())
}
