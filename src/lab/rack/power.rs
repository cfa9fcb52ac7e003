//! Power, serial ports and status of the rack's nodes.

use super::record::NodeRecord;
use crate::{
    Extra, LabError, Rack, Wait,
    host::process::ProcessId,
    machine::Firmware,
    qemu::{
        command_line::{self, Files, Machine},
        qmp, serial, vfio_trial_hardware,
    },
};
use meshd_types::{MacAddr, NodeId};
use serde::Serialize;
use serde_json::Value;
use std::{
    fs, os::unix::net::UnixStream, path::PathBuf, process::Command, str::FromStr, time::Duration,
};

/// Longest time that QEMU may take to open its control socket.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Longest time that QEMU may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// Start QEMU.
    On,
    /// End QEMU.
    Off,
    /// Reset the machine.
    Reset,
}

impl FromStr for Power {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "on" => Ok(Power::On),
            "off" => Ok(Power::Off),
            "reset" => Ok(Power::Reset),
            _ => Err(format!("`{text}` is no power action; known: on, off, reset")),
        }
    }
}

/// Status of a rack for `meshd lab status`.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub dir: PathBuf,
    /// Name of the network namespace.
    pub namespace: String,
    pub site: PathBuf,
    pub accel: crate::Accel,
    /// Process ID of meshd, while it runs.
    pub meshd: Option<i32>,
    pub log: PathBuf,
    /// Nodes, ordered by position.
    pub nodes: Vec<NodeStatus>,
}

#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// `node1`, `node2`...
    pub name: String,
    /// Node ID that meshd derives from the hardware.
    pub id: NodeId,
    pub firmware: Firmware,
    /// MAC address of the boot NIC.
    pub mac: MacAddr,
    /// Power state: `on` or `off`.
    pub power: &'static str,
    /// Process ID of QEMU while the node is on.
    pub pid: Option<i32>,
    /// Log of the serial port.
    pub serial: PathBuf,
}

impl Rack {
    /// Returns the number of nodes.
    pub fn size(&self) -> u8 {
        u8::try_from(self.record.nodes.len()).unwrap_or(u8::MAX)
    }

    /// Returns the position of a node, by its name (`node1`, or `1`) or ID.
    pub fn position(&self, name: &str) -> Result<u8, LabError> {
        let is = |node: &&NodeRecord| {
            node.name() == name
                || node.position.to_string() == name
                || node.identity().node_id().to_string() == name
        };
        self.record.nodes.iter().find(is).map(|node| node.position).ok_or_else(|| {
            LabError::NoSuchNode {
                name: name.to_owned(),
                known: self
                    .record
                    .nodes
                    .iter()
                    .map(NodeRecord::name)
                    .collect::<Vec<_>>()
                    .join(", "),
            }
        })
    }

    fn at(&self, position: u8) -> &NodeRecord {
        &self.record.nodes[usize::from(position) - 1]
    }

    fn files(&self, position: u8) -> Files {
        Files::of(&self.layout.dir, &self.at(position).name())
    }

    pub fn id(&self, position: u8) -> NodeId {
        self.at(position).identity().node_id()
    }

    pub fn identity(&self, position: u8) -> crate::Identity {
        self.at(position).identity()
    }

    /// Changes the hardware identity of a node, for example its NIC. The change takes effect at the
    /// next power-on.
    pub fn set_identity(
        &mut self,
        position: u8,
        identity: crate::Identity,
    ) -> Result<(), LabError> {
        self.record.nodes[usize::from(position) - 1].identity = Some(identity);
        self.record.save(&self.layout.dir)
    }

    /// Changes the memory of all nodes, also below what a boot needs. The change takes effect at the
    /// next power-on.
    pub fn set_memory(&mut self, mib: u32) -> Result<(), LabError> {
        self.record.shape.memory_mib = mib;
        self.record.save(&self.layout.dir)
    }

    pub fn firmware(&self, position: u8) -> Firmware {
        self.at(position).firmware
    }

    pub fn power(&mut self, position: u8, power: Power) -> Result<(), LabError> {
        match power {
            Power::On => self.power_on(position),
            Power::Off => self.power_off(position),
            Power::Reset => qmp::reset(&self.at(position).name(), &self.files(position).qmp),
        }
    }

    pub(crate) fn power_on(&mut self, position: u8) -> Result<(), LabError> {
        let node = self.at(position).clone();
        let files = self.files(position);
        if node.is_on() {
            return Ok(());
        }
        if node.firmware.is_uefi() && !files.vars.exists() {
            self.tools.ovmf.copy_vars(&files.vars)?;
        }
        if node.extras.contains(&Extra::Disk) && !files.disk.exists() {
            vfio_trial_hardware::create_disk(&files.disk)
                .map_err(LabError::file("make", &files.disk))?;
        }
        let machine = Machine {
            name: format!("{} {}", self.namespace.name(), node.name()),
            shape: self.record.shape,
            extras: &node.extras,
            identity: &node.identity(),
            firmware: node.firmware,
            accel: self.record.accel,
            tap: &node.tap(),
            ovmf: &self.tools.ovmf,
            console: self.record.console,
            files: &files,
        };
        let mut command = Command::new(&self.tools.qemu);
        command.args(command_line::arguments(&machine));
        let process = self.launch(&node.name(), &mut command, &files.log)?;
        self.record.nodes[usize::from(position) - 1].process = Some(process);
        self.record.save(&self.layout.dir)?;
        self.wait(START_LIMIT, &format!("{}'s control socket", node.name()), |_| {
            if !process.is_alive() {
                let log = fs::read_to_string(&files.log).unwrap_or_default();
                let detail = serial::last_lines(&log, 5);
                return Err(LabError::Failed {
                    program: format!("QEMU ({})", node.name()),
                    detail,
                });
            }
            Ok(Wait::on(files.qmp.exists(), "it starts"))
        })
    }

    fn power_off(&mut self, position: u8) -> Result<(), LabError> {
        let name = self.at(position).name();
        let process = self.record.nodes[usize::from(position) - 1].process.take();
        process.map_or(Ok(()), |process| process.end(&name, STOP_LIMIT))?;
        self.reap(&name);
        self.record.save(&self.layout.dir)
    }

    /// Returns the serial output of a node, without terminal escapes.
    pub fn serial(&self, position: u8) -> String {
        fs::read(self.files(position).serial).map(|bytes| serial::plain(&bytes)).unwrap_or_default()
    }

    /// Connects to the serial port of a node that is on, in a rack with consoles.
    pub fn console(&self, position: u8) -> Result<UnixStream, LabError> {
        let path = self.files(position).console;
        UnixStream::connect(&path).map_err(LabError::file("open", path))
    }

    pub fn disk_file(&self, position: u8) -> PathBuf {
        self.files(position).disk
    }

    pub fn serial_file(&self, position: u8) -> PathBuf {
        self.files(position).serial
    }

    /// Returns the nodes that meshd knows: `node list -o json`.
    pub fn nodes(&self) -> Result<Vec<Value>, LabError> {
        Ok(self.query(&["node", "list"])?.as_array().cloned().unwrap_or_default())
    }

    /// Returns a node as meshd lists it; `None` before its discovery.
    pub fn node(&self, position: u8) -> Result<Option<Value>, LabError> {
        let id = self.id(position).to_string();
        Ok(self.nodes()?.into_iter().find(|node| node["id"] == id.as_str()))
    }

    /// Waits until `condition` holds for the node at a position.
    pub fn wait_node(
        &self,
        position: u8,
        timeout: Duration,
        awaited: &str,
        condition: impl Fn(&Value) -> bool,
    ) -> Result<Value, LabError> {
        let awaited = format!("{} to be {awaited}", self.at(position).name());
        self.wait(timeout, &awaited, |rack| {
            Ok(match rack.node(position)? {
                Some(node) if condition(&node) => Wait::Done(node),
                Some(node) => {
                    Wait::NotYet(format!("phase {}, boot {}", node["phase"], node["boot"]))
                }
                None => Wait::NotYet("meshd does not know it".to_owned()),
            })
        })
    }

    /// Returns the ends of all serial logs, also before a node's last start, and of meshd's log.
    pub fn log_ends(&self, lines: usize) -> String {
        let section = |name: &str, log: &str| {
            format!("---- {name}: last lines ----\n{}\n", serial::last_lines(log, lines))
        };
        let mut all = String::new();
        for node in &self.record.nodes {
            let log = self.serial(node.position);
            let (before, since) = serial::before_and_since_start(&log);
            if !before.is_empty() {
                all += &section(&format!("{}, before its last start", node.name()), before);
            }
            all += &section(&node.name(), since);
        }
        all + &section("meshd", &self.central_log())
    }

    pub fn status(&self) -> Status {
        let alive = |process: Option<ProcessId>| {
            process.filter(|process| process.is_alive()).map(|process| process.pid)
        };
        let node = |node: &NodeRecord| NodeStatus {
            name: node.name(),
            id: node.identity().node_id(),
            firmware: node.firmware,
            mac: node.identity().mac,
            power: if node.is_on() { "on" } else { "off" },
            pid: alive(node.process),
            serial: self.files(node.position).serial,
        };
        Status {
            dir: self.layout.dir.clone(),
            namespace: self.namespace.name().to_owned(),
            site: self.layout.site.clone(),
            accel: self.record.accel,
            meshd: alive(self.record.central),
            log: self.layout.log.clone(),
            nodes: self.record.nodes.iter().map(node).collect(),
        }
    }
}
