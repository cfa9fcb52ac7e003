//! Power, serial ports and status of the rack's nodes.

use super::record::NodeRecord;
use crate::{
    Extra, LabError, Rack, Wait,
    host::process::ProcessId,
    machine::Firmware,
    qemu::{
        command_line::{self, Files, Machine},
        extra, qmp, serial,
    },
};
use meshd_types::{MacAddr, NodeId};
use serde::Serialize;
use serde_json::Value;
use std::{fs, os::unix::net::UnixStream, path::PathBuf, process::Command, str::FromStr, time::Duration};

/// How long QEMU may take to open its control socket.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long QEMU may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// A power button.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// Plug it in.
    On,
    /// Pull the plug.
    Off,
    /// Press reset.
    Reset,
}

impl FromStr for Power {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "on" => Ok(Power::On),
            "off" => Ok(Power::Off),
            "reset" => Ok(Power::Reset),
            _ => Err(format!("`{text}` is no power button; known: on, off, reset")),
        }
    }
}

/// A rack as `meshd lab status` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub dir: PathBuf,
    /// The network namespace.
    pub namespace: String,
    /// The rack's site file.
    pub site: PathBuf,
    pub accel: crate::Accel,
    /// Process ID of meshd, while it runs.
    pub meshd: Option<i32>,
    pub log: PathBuf,
    /// In the order of their places.
    pub nodes: Vec<NodeStatus>,
}

/// One node of it.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// `node1`, `node2`...
    pub name: String,
    /// The ID that meshd derives.
    pub id: NodeId,
    pub firmware: Firmware,
    /// The NIC that it boots from.
    pub mac: MacAddr,
    /// `on` or `off`.
    pub power: &'static str,
    /// Process ID of its QEMU, while it is on.
    pub pid: Option<i32>,
    /// What it writes to its serial port.
    pub serial: PathBuf,
}

impl Rack {
    /// How many nodes there are.
    pub fn size(&self) -> u8 {
        u8::try_from(self.record.nodes.len()).unwrap_or(u8::MAX)
    }

    /// The place of a node by its name in the rack (`node1`, or `1`) or its ID.
    pub fn place(&self, asked: &str) -> Result<u8, LabError> {
        let is = |node: &&NodeRecord| {
            node.name() == asked || node.place.to_string() == asked || node.identity().node_id().to_string() == asked
        };
        self.record.nodes.iter().find(is).map(|node| node.place).ok_or_else(|| LabError::NoSuchNode {
            asked: asked.to_owned(),
            known: self.record.nodes.iter().map(NodeRecord::name).collect::<Vec<_>>().join(", "),
        })
    }

    fn at(&self, place: u8) -> &NodeRecord {
        &self.record.nodes[usize::from(place) - 1]
    }

    fn files(&self, place: u8) -> Files {
        Files::of(&self.layout.dir, &self.at(place).name())
    }

    /// The ID that meshd derives for the node at this place.
    pub fn id(&self, place: u8) -> NodeId {
        self.at(place).identity().node_id()
    }

    /// Who the node at this place says it is.
    pub fn identity(&self, place: u8) -> crate::Identity {
        self.at(place).identity()
    }

    /// Gives the node at this place other parts: a network card, a board. It tells of them when it is powered on next.
    pub fn refit(&mut self, place: u8, identity: crate::Identity) -> Result<(), LabError> {
        self.record.nodes[usize::from(place) - 1].identity = Some(identity);
        self.record.save(&self.layout.dir)
    }

    /// How the node at this place starts.
    pub fn firmware(&self, place: u8) -> Firmware {
        self.at(place).firmware
    }

    /// Presses a power button.
    pub fn power(&mut self, place: u8, power: Power) -> Result<(), LabError> {
        match power {
            Power::On => self.power_on(place),
            Power::Off => self.power_off(place),
            Power::Reset => qmp::reset(&self.at(place).name(), &self.files(place).qmp),
        }
    }

    pub(crate) fn power_on(&mut self, place: u8) -> Result<(), LabError> {
        let (node, files) = (self.at(place).clone(), self.files(place));
        if node.is_on() {
            return Ok(());
        }
        if node.firmware.is_uefi() && !files.vars.exists() {
            self.tools.ovmf.fresh_vars(&files.vars)?;
        }
        if node.extras.contains(&Extra::Disk) && !files.disk.exists() {
            extra::fresh_disk(&files.disk).map_err(LabError::file("make", &files.disk))?;
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
        self.record.nodes[usize::from(place) - 1].process = Some(process);
        self.record.save(&self.layout.dir)?;
        self.wait(START_LIMIT, &format!("{}'s control socket", node.name()), |_| {
            if !process.is_alive() {
                let log = fs::read_to_string(&files.log).unwrap_or_default();
                let detail = serial::last_lines(&log, 5);
                return Err(LabError::Failed { program: format!("qemu-system-x86_64 ({})", node.name()), detail });
            }
            Ok(Wait::on(files.qmp.exists(), "it starts"))
        })
    }

    fn power_off(&mut self, place: u8) -> Result<(), LabError> {
        let name = self.at(place).name();
        let process = self.record.nodes[usize::from(place) - 1].process.take();
        process.map_or(Ok(()), |process| process.end(&name, STOP_LIMIT))?;
        self.reap(&name);
        self.record.save(&self.layout.dir)
    }

    /// Everything that the node at this place wrote to its serial port.
    pub fn serial(&self, place: u8) -> String {
        fs::read(self.files(place).serial).map(|bytes| serial::plain(&bytes)).unwrap_or_default()
    }

    /// The serial port of the node at this place, in a rack that has consoles; the node is on.
    pub fn console(&self, place: u8) -> Result<UnixStream, LabError> {
        let path = self.files(place).console;
        UnixStream::connect(&path).map_err(LabError::file("open", path))
    }

    /// What the disk of the node at this place holds, where it has one.
    pub fn disk_file(&self, place: u8) -> PathBuf {
        self.files(place).disk
    }

    /// Where what it wrote lies.
    pub fn serial_file(&self, place: u8) -> PathBuf {
        self.files(place).serial
    }

    /// What meshd says of all nodes that it knows: `node list -o json`.
    pub fn nodes(&self) -> Result<Vec<Value>, LabError> {
        Ok(self.ask(&["node", "list"])?.as_array().cloned().unwrap_or_default())
    }

    /// What meshd says of the node at this place; `None` while it does not know it.
    pub fn node(&self, place: u8) -> Result<Option<Value>, LabError> {
        let id = self.id(place).to_string();
        Ok(self.nodes()?.into_iter().find(|node| node["id"] == id.as_str()))
    }

    /// Waits until meshd says that the node at this place is as wanted.
    pub fn wait_node(
        &self,
        place: u8,
        after: Duration,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value, LabError> {
        let what = format!("{} to be {what}", self.at(place).name());
        self.wait(after, &what, |rack| {
            Ok(match rack.node(place)? {
                Some(node) if wanted(&node) => Wait::Done(node),
                Some(node) => Wait::NotYet(format!("phase {}, boot {}", node["phase"], node["boot"])),
                None => Wait::NotYet("meshd does not know it".to_owned()),
            })
        })
    }

    /// The ends of all serial logs, also that before a node's last start, then of meshd's log.
    pub fn last_words(&self, lines: usize) -> String {
        let words =
            |name: &str, log: &str| format!("---- {name}: last lines ----\n{}\n", serial::last_lines(log, lines));
        let mut all = String::new();
        for node in &self.record.nodes {
            let log = self.serial(node.place);
            let (before, since) = serial::before_and_since_start(&log);
            if !before.is_empty() {
                all += &words(&format!("{}, before its last start", node.name()), before);
            }
            all += &words(&node.name(), since);
        }
        all + &words("meshd", &self.central_log())
    }

    /// What there is and what runs.
    pub fn status(&self) -> Status {
        let alive =
            |process: Option<ProcessId>| process.filter(|process| process.is_alive()).map(|process| process.pid);
        let node = |node: &NodeRecord| NodeStatus {
            name: node.name(),
            id: node.identity().node_id(),
            firmware: node.firmware,
            mac: node.identity().mac,
            power: if node.is_on() { "on" } else { "off" },
            pid: alive(node.process),
            serial: self.files(node.place).serial,
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
