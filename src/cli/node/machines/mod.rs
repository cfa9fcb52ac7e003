//! `meshd node add|import|export|list --expected|remove --expected`: machines as lists, also those
//! that have not booted yet.
//!
//! | module | content |
//! | --- | --- |
//! | `csv` | lists of machines as CSV |
//! | `export` | `meshd node export`: nodes in the formats of other programs |
//! | `maas` | machines of MAAS, as its command line prints them |
//! | `mesh_hypervisor` | the folder of machines of Mesh Hypervisor |
//! | `warewulf` | `nodes.conf` of Warewulf |
//! | `xcat` | definitions of xCAT |

mod csv;
mod export;
mod maas;
mod mesh_hypervisor;
mod warewulf;
mod xcat;

pub(crate) use export::Export;
pub(in crate::cli::node) use export::{ansible, csv_text, expected_csv};

use crate::cli::{
    Failure,
    client::AdminClient,
    output::print::{confirm, confirm_number, table_of},
};
use clap::{Args, ValueEnum};
use meshd_api::{ImportMachines, ImportedMachines, MachineView, RemoveMachines, routes as api};
use meshd_config::{Fault, Faults};
use meshd_model::fleet::{MachineRow, RowFault, label_words, parse_rows};
use meshd_types::{Hostlist, MacAddr, NodePattern, Timestamp, matches_glob, one_line};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

/// Maximum size of a list of machines, in bytes.
const MAX_FILE: u64 = 16 << 20;

#[derive(Debug, Args)]
pub(crate) struct AddMachine {
    /// MAC address of the boot NIC
    #[arg(long, value_name = "MAC")]
    mac: String,
    /// Name of the node
    #[arg(long, value_name = "NAME", default_value = "")]
    name: String,
    /// Address to reserve
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    address: String,
    /// Profile [default: that of the site]
    #[arg(long, value_name = "P", default_value = "")]
    profile: String,
    /// Label, such as rack=a; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    label: Vec<String>,
    /// Serial number that the machine must report
    #[arg(long, value_name = "SERIAL", default_value = "")]
    serial: String,
    /// Protocol of the BMC: redfish, ipmi, wol or command
    #[arg(long, value_name = "DRIVER", default_value = "")]
    bmc_driver: String,
    /// Address of the BMC
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    bmc_address: String,
    /// MAC address of a BMC that gets its address from meshd
    #[arg(long, value_name = "MAC", default_value = "")]
    bmc_mac: String,
    #[command(flatten)]
    options: ImportArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportFile {
    /// List of machines; a folder for mesh-hypervisor
    file: PathBuf,
    /// Format of the file [default: by name and content]
    #[arg(long, value_enum)]
    format: Option<ListFormat>,
    #[command(flatten)]
    options: ImportArgs,
}

#[derive(Clone, Copy, Debug, Args)]
struct ImportArgs {
    /// Approve the machines at their first boot
    #[arg(long)]
    approve: bool,
    /// Check and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ListFormat {
    /// First line: mac and any other column
    Csv,
    /// nodes.conf of Warewulf
    Warewulf,
    /// Output of: maas PROFILE machines read
    Maas,
    /// Output of: lsdef -t node -l -z
    Xcat,
    /// Folder /host0/machines, with a file MAC for each machine
    MeshHypervisor,
}

impl ListFormat {
    /// Returns the format that a file seems to have.
    fn of(file: &Path, content: &[u8]) -> Self {
        let is_yaml =
            |extension: &std::ffi::OsStr| ["conf", "yaml", "yml"].iter().any(|it| extension == *it);
        if maas::is_export(content) {
            ListFormat::Maas
        } else if xcat::is_export(content) {
            ListFormat::Xcat
        } else if file.extension().is_some_and(is_yaml) {
            ListFormat::Warewulf
        } else {
            ListFormat::Csv
        }
    }
}

impl AddMachine {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let row = MachineRow {
            line: 0,
            mac: self.mac,
            name: self.name,
            address: self.address,
            profile: self.profile,
            labels: self.label.join(" "),
            serial: self.serial,
            bmc_driver: self.bmc_driver,
            bmc_address: self.bmc_address,
            bmc_mac: self.bmc_mac,
        };
        let title = if row.name.is_empty() { row.mac.clone() } else { row.name.clone() };
        let report = import(client, &[row], Vec::new(), self.options).await?;
        if report.faults.is_empty() {
            message!("{title}: {}", report_text(&report, self.options));
            return Ok(());
        }
        for RowFault { column, message, hint, .. } in &report.faults {
            let option = column.replace('_', "-").replace("labels", "label");
            let message = one_line(message);
            let hint = one_line(hint);
            message!("--{option}: {message}\n  hint: {hint}");
        }
        Err(Failure::new(format!("cannot add machine {title}"), "correct the options above"))
    }
}

impl ImportFile {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let (rows, faults) = self.parse()?;
        if rows.is_empty() && faults.is_empty() {
            let message = format!("{} lists no machine", self.file.display());
            return Err(Failure::new(message, "write one line for each machine"));
        }
        let report = import(client, &rows, faults, self.options).await?;
        if !report.faults.is_empty() {
            return Err(self.faults(report.faults));
        }
        message!("{}: {}", self.file.display(), report_text(&report, self.options));
        Ok(())
    }

    fn parse(&self) -> Result<(Vec<MachineRow>, Vec<RowFault>), Failure> {
        let is_folder = self.file.is_dir();
        if self.format == Some(ListFormat::MeshHypervisor) || self.format.is_none() && is_folder {
            return mesh_hypervisor::parse(&self.file).map_err(|error| {
                Failure::new(
                    format!("cannot read the folder {}: {error}", self.file.display()),
                    "name the folder of machines of Mesh Hypervisor: /host0/machines",
                )
            });
        }
        let bytes = read(&self.file)?;
        let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes);
        Ok(match self.format.unwrap_or_else(|| ListFormat::of(&self.file, bytes)) {
            ListFormat::Csv | ListFormat::MeshHypervisor => csv::parse(bytes),
            ListFormat::Warewulf => warewulf::parse(bytes),
            ListFormat::Maas => maas::parse(bytes),
            ListFormat::Xcat => xcat::parse(bytes),
        })
    }

    fn faults(&self, faults: Vec<RowFault>) -> Failure {
        let fault = |fault: RowFault| Fault {
            file: self.file.clone(),
            line: fault.line,
            key: fault.column,
            message: fault.message,
            hint: fault.hint,
        };
        Failure::from(Faults(faults.into_iter().map(fault).collect()))
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|open| open.take(MAX_FILE + 1).read_to_end(&mut bytes));
    read.map_err(|error| {
        Failure::new(format!("cannot read {}: {error}", file.display()), "check the path")
    })?;
    if bytes.len() as u64 > MAX_FILE {
        let message = format!("{} is larger than {} MiB", file.display(), MAX_FILE >> 20);
        return Err(Failure::new(message, "split it into several lists"));
    }
    Ok(bytes)
}

/// Imports rows in one request, because meshd checks a list as a whole. With faults of the texts,
/// nothing is sent.
async fn import(
    client: &AdminClient,
    rows: &[MachineRow],
    mut faults: Vec<RowFault>,
    options: ImportArgs,
) -> Result<ImportedMachines, Failure> {
    let ImportArgs { approve, dry_run } = options;
    faults.extend(parse_rows(rows, Timestamp::EPOCH).1);
    // meshd reports the conflicts of the rows, too.
    let dry_run = dry_run || !faults.is_empty();
    let body = ImportMachines { machines: rows.to_vec(), approve, dry_run };
    let mut report = client.post(api::IMPORT_MACHINES.path([]), &body).await?;
    report.faults.extend(faults);
    report.faults.sort();
    report.faults.dedup();
    let stored = report.added + report.changed;
    if !dry_run && !report.faults.is_empty() && stored > 0 {
        message!("{stored} machines are stored; repeat the import to complete it");
    }
    Ok(report)
}

fn report_text(report: &ImportedMachines, options: ImportArgs) -> String {
    let ImportedMachines { added, changed, unchanged, .. } = report;
    let would = if options.dry_run { "would be " } else { "" };
    let approval = if options.approve { "; they are approved when they appear" } else { "" };
    format!("{would}{added} added, {changed} changed, {unchanged} unchanged{approval}")
}

/// Returns the expected machines that have not appeared.
pub(in crate::cli::node) async fn expected(
    client: &AdminClient,
    names: Option<&Hostlist>,
) -> Result<Vec<MachineView>, Failure> {
    let all = client.get(api::LIST_MACHINES.path([])).await?;
    let mut machines = match names {
        Some(names) => find(all, names)?,
        None => all,
    };
    machines.retain(|view| view.machine.node.is_none());
    Ok(machines)
}

/// Names of the columns of expected machines. The last ones are those of `-o wide` alone.
const HEAD: [&str; 10] = [
    "mac",
    "name",
    "address",
    "profile",
    "labels",
    "approved",
    "serial",
    "bmc_driver",
    "bmc_address",
    "bmc_mac",
];
const NARROW: usize = 6;

/// Formats expected machines as a table.
pub(in crate::cli::node) fn rows(machines: &[MachineView], headers: bool, wide: bool) -> String {
    let text = |value: Option<String>| value.unwrap_or_default();
    let columns = if wide { HEAD.len() } else { NARROW };
    let rows = machines.iter().map(|MachineView { machine }| {
        let cells = [
            machine.mac.to_string(),
            text(machine.name.clone()),
            text(machine.address.map(|address| address.to_string())),
            text(machine.profile.as_ref().map(ToString::to_string)),
            label_words(&machine.labels),
            if machine.approved { "when it appears".to_owned() } else { "no".to_owned() },
            text(machine.serial.clone()),
            text(machine.bmc_driver.map(|driver| driver.to_string())),
            text(machine.bmc_address.clone()),
            text(machine.bmc_mac.map(|mac| mac.to_string())),
        ];
        cells.into_iter().take(columns)
    });
    table_of(if headers { &HEAD[..columns] } else { &[] }, rows)
}

/// Removes expected machines by name or MAC address.
pub(crate) async fn remove(
    client: &AdminClient,
    names: &Hostlist,
    yes: bool,
) -> Result<(), Failure> {
    let machines = find(client.get(api::LIST_MACHINES.path([])).await?, names)?;
    if !yes {
        let lines: Vec<String> = machines.iter().map(|view| view.machine.title()).collect();
        let lines = lines.join("\n");
        match machines.as_slice() {
            [_] => confirm(&format!("{lines} is no longer expected. Remove?"))?,
            several => {
                let question =
                    format!("{lines}\n{} machines are no longer expected. Remove?", several.len());
                confirm_number(&question, several.len())?;
            }
        }
    }
    let macs: Vec<MacAddr> = machines.iter().map(|view| view.machine.mac).collect();
    for removed in client.post(api::REMOVE_MACHINES.path([]), &RemoveMachines { macs }).await? {
        message!("{} is no longer expected", removed.machine.title());
    }
    Ok(())
}

/// Finds expected machines by name or MAC address. All names must have a machine.
fn find(all: Vec<MachineView>, names: &Hostlist) -> Result<Vec<MachineView>, Failure> {
    let mut found = BTreeSet::new();
    let mut missing = Vec::new();
    let machines = || all.iter().map(|view| &view.machine);
    let named: BTreeMap<&str, MacAddr> =
        machines().filter_map(|machine| Some((machine.name.as_deref()?, machine.mac))).collect();
    let known: BTreeSet<MacAddr> = machines().map(|machine| machine.mac).collect();
    for pattern in names.patterns() {
        let (text, macs): (_, Vec<MacAddr>) = match pattern {
            NodePattern::Glob(glob) => {
                let names = named.iter().filter(|(name, _)| matches_glob(glob, name));
                (glob, names.map(|(_, mac)| *mac).collect())
            }
            NodePattern::Name(text) | NodePattern::Word(text) => {
                let by_mac = || text.parse::<MacAddr>().ok().filter(|mac| known.contains(mac));
                let mac = named.get(text.as_str()).copied().or_else(by_mac);
                (text, mac.into_iter().collect())
            }
        };
        if macs.is_empty() {
            missing.push(format!("`{text}`"));
        }
        found.extend(macs);
    }
    if !missing.is_empty() {
        let message = format!("no machine is expected as {}", missing.join(", "));
        return Err(Failure::new(message, "`meshd node list --expected` lists them"));
    }
    Ok(all.into_iter().filter(|view| found.contains(&view.machine.mac)).collect())
}
