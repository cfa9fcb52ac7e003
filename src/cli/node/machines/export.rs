//! `meshd node export`: nodes in the formats of other programs.

use crate::cli::node::targets::joined;
use crate::cli::{
    Failure,
    client::AdminClient,
    output::print::{json, write},
};
use clap::{Args, ValueEnum};
use meshd_api::{MachineView, NodeDetail, NodeView, routes as api};
use meshd_model::fleet::{ExpectedMachine, MACHINE_COLUMNS, label_words};
use meshd_types::Hostlist;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Port of the Prometheus node exporter.
const EXPORTER_PORT: u16 = 9100;
/// Port of SSH, which a file of known hosts does not name.
const SSH_PORT: u16 = 22;

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Only these nodes: IDs, names or hostlists: gpu[01-40],n*
    #[arg(value_name = "NODE")]
    nodes: Vec<Hostlist>,
    /// Format
    #[arg(long, value_enum)]
    format: ExportFormat,
    /// Port of the targets [default: 9100] or of SSH [default: 22]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    /// For `meshd node import`; also expected machines
    Csv,
    /// Inventory of Ansible
    Ansible,
    /// Lines for /etc/hosts
    Hosts,
    /// Targets for file_sd_configs of Prometheus
    Prometheus,
    /// Host keys for ssh: UserKnownHostsFile
    KnownHosts,
}

impl Export {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let named = if self.nodes.is_empty() { None } else { Some(joined(&self.nodes)?) };
        let path = api::LIST_NODES.path([]).with("sort", "name");
        let nodes = client.get(path.with_optional("nodes", named.as_ref())).await?;
        let text = match self.format {
            ExportFormat::Csv => {
                let machines = client.get(api::LIST_MACHINES.path([])).await?;
                csv(&nodes, &machines, named.is_none())?
            }
            ExportFormat::Ansible => json(&ansible(&nodes))?,
            ExportFormat::Hosts => hosts(&nodes),
            ExportFormat::Prometheus => {
                json(&prometheus(&nodes, self.port.unwrap_or(EXPORTER_PORT)))?
            }
            ExportFormat::KnownHosts => {
                let port = self.port.unwrap_or(SSH_PORT);
                let mut text = String::new();
                for node in &nodes {
                    text += &known_hosts(&client.get(api::GET_NODE.path([&node.id])).await?, port);
                }
                text
            }
        };
        write(&text)
    }
}

/// Writes nodes as a list for `meshd node import`, with their values as expected machines. `is_all`:
/// also machines that have not appeared.
fn csv(nodes: &[NodeView], machines: &[MachineView], is_all: bool) -> Result<String, Failure> {
    let text = |value: Option<String>| value.unwrap_or_default();
    let mut records = vec![MACHINE_COLUMNS.map(str::to_owned)];
    let machine_of = |node: &NodeView| {
        machines.iter().map(|view| &view.machine).find(|machine| machine.mac == node.mac)
    };
    records.extend(nodes.iter().map(|node| {
        let machine = machine_of(node);
        [
            node.mac.to_string(),
            if node.has_generated_name() { String::new() } else { node.name.clone() },
            // The address of a lease is not reserved.
            text(machine.and_then(|it| it.address).map(|address| address.to_string())),
            if node.assigned { node.profile.to_string() } else { String::new() },
            label_words(&node.labels),
            text(machine.and_then(|it| it.serial.clone())),
            text(machine.and_then(|it| it.bmc_driver).map(|driver| driver.to_string())),
            text(machine.and_then(|it| it.bmc_address.clone())),
            text(machine.and_then(|it| it.bmc_mac).map(|mac| mac.to_string())),
        ]
    }));
    let expected =
        machines.iter().map(|view| &view.machine).filter(|it| is_all && it.node.is_none());
    let is_new = |mac| !nodes.iter().any(|node| node.mac == mac);
    records.extend(expected.filter(|machine| is_new(machine.mac)).map(record));
    csv_text(records)
}

/// Formats expected machines as a list for `meshd node import`.
pub(in crate::cli::node) fn expected_csv(
    machines: &[MachineView],
    headers: bool,
) -> Result<String, Failure> {
    let head = headers.then(|| MACHINE_COLUMNS.map(str::to_owned));
    csv_text(head.into_iter().chain(machines.iter().map(|view| record(&view.machine))))
}

/// Returns the values of an expected machine, by [`MACHINE_COLUMNS`].
fn record(machine: &ExpectedMachine) -> [String; MACHINE_COLUMNS.len()] {
    let text = |value: Option<String>| value.unwrap_or_default();
    [
        machine.mac.to_string(),
        text(machine.name.clone()),
        text(machine.address.map(|address| address.to_string())),
        text(machine.profile.as_ref().map(ToString::to_string)),
        label_words(&machine.labels),
        text(machine.serial.clone()),
        text(machine.bmc_driver.map(|driver| driver.to_string())),
        text(machine.bmc_address.clone()),
        text(machine.bmc_mac.map(|mac| mac.to_string())),
    ]
}

/// Formats records as CSV (RFC 4180).
pub(in crate::cli::node) fn csv_text<const N: usize>(
    records: impl IntoIterator<Item = [String; N]>,
) -> Result<String, Failure> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let failed =
        |error: &dyn std::fmt::Display| Failure::new(format!("cannot write CSV: {error}"), "");
    for record in records {
        writer.write_record(record).map_err(|error| failed(&error))?;
    }
    let bytes = writer.into_inner().map_err(|error| failed(&error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns an inventory: all nodes, a group for each profile and for each label.
pub(in crate::cli::node) fn ansible(nodes: &[NodeView]) -> Value {
    let (mut hosts, mut groups) = (Map::new(), BTreeMap::<String, Map<String, Value>>::new());
    for node in nodes {
        let mut vars = json!({
            "meshd_id": node.id,
            "meshd_mac": node.mac,
            "meshd_phase": node.phase,
            "meshd_profile": node.profile,
            "meshd_labels": node.labels,
        });
        if let Some(address) = node.address {
            vars["ansible_host"] = json!(address);
        }
        hosts.insert(node.name.clone(), vars);
        let labels = node.labels.iter().map(|(key, value)| format!("{key}_{value}"));
        for group in labels.chain([format!("profile_{}", node.profile)]) {
            groups.entry(group_name(&group)).or_default().insert(node.name.clone(), json!({}));
        }
    }
    let children: Map<String, Value> =
        groups.into_iter().map(|(name, hosts)| (name, json!({ "hosts": hosts }))).collect();
    json!({ "all": { "hosts": hosts, "children": children } })
}

/// Returns a name that Ansible takes for a group: letters, digits and `_`.
fn group_name(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// Returns a line with address, name and ID for each node with an address.
fn hosts(nodes: &[NodeView]) -> String {
    let line = |node: &NodeView| {
        let alias =
            if node.has_generated_name() { String::new() } else { format!(" node-{}", node.id) };
        Some(format!("{} {}{alias}\n", node.address?, node.name))
    };
    nodes.iter().filter_map(line).collect()
}

/// Returns a line for each host key that the agent of a node reported.
fn known_hosts(detail: &NodeDetail, port: u16) -> String {
    let NodeView { id, name, address, .. } = &detail.node;
    let names = [name.clone(), format!("node-{id}")].into_iter();
    let mut hosts: Vec<String> = names.chain(address.map(|it| it.to_string())).collect();
    hosts.dedup();
    if port != SSH_PORT {
        hosts.iter_mut().for_each(|host| *host = format!("[{host}]:{port}"));
    }
    let hosts = hosts.join(",");
    let keys = detail.facts.iter().flat_map(|facts| facts.valid_ssh_host_keys());
    keys.map(|key| format!("{hosts} {key}\n")).collect()
}

/// Returns a target for each node with an address.
fn prometheus(nodes: &[NodeView], port: u16) -> Value {
    let target = |node: &NodeView| {
        let address = node.address?;
        let host = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
        let own = [
            ("node".to_owned(), node.name.clone()),
            ("node_id".to_owned(), node.id.to_string()),
            ("profile".to_owned(), node.profile.to_string()),
        ];
        let labels = node.labels.iter();
        let labels = labels.map(|(key, value)| {
            (format!("label_{}", group_name(&key.to_string())), value.to_string())
        });
        let labels: BTreeMap<String, String> = own.into_iter().chain(labels).collect();
        Some(json!({ "targets": [format!("{host}:{port}")], "labels": labels }))
    };
    nodes.iter().filter_map(target).collect()
}
