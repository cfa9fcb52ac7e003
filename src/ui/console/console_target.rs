//! What a console is connected to: its page, and its WebSocket of the admin API.

use super::terminal_screen;
use crate::PREFIX;
use meshd_api::{
    routes::{self as api, Empty, GetPath},
    segment,
};

/// The terminal that the emulator and the keys of the page resemble.
const TERMINAL: &str = "xterm";

/// What a console is connected to, by name or ID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConsoleTarget {
    /// The serial port of a VM.
    Vm(String),
    /// A shell of a node.
    Node(String),
    /// A shell of the guest of a VM.
    Guest(String),
    /// A program in a replica of a container.
    Replica(String),
}

impl ConsoleTarget {
    /// Returns the path of the page.
    pub(crate) fn page(&self) -> String {
        match self {
            ConsoleTarget::Vm(vm) => format!("{PREFIX}/vms/{}/console", segment(vm)),
            ConsoleTarget::Node(node) => format!("{PREFIX}/nodes/{}/shell", segment(node)),
            ConsoleTarget::Guest(vm) => format!("{PREFIX}/vms/{}/shell", segment(vm)),
            ConsoleTarget::Replica(id) => format!("{PREFIX}/containers/{}/shell", segment(id)),
        }
    }

    /// Returns true for a target that runs a program while it is open. Only a form opens it.
    pub(crate) fn is_shell(&self) -> bool {
        match self {
            ConsoleTarget::Vm(_) => false,
            ConsoleTarget::Node(_) | ConsoleTarget::Guest(_) | ConsoleTarget::Replica(_) => true,
        }
    }

    /// Returns true if its user chooses the program.
    pub(crate) fn takes_program(&self) -> bool {
        matches!(self, ConsoleTarget::Replica(_))
    }

    /// Returns who the user is in a shell, and when the shell ends.
    pub(crate) fn note(&self) -> Option<&'static str> {
        match self {
            ConsoleTarget::Vm(_) => None,
            ConsoleTarget::Node(_) => Some(
                "You are root. The shell and its programs end with `exit`, 15 minutes after this page is closed or hidden, \
                 after 30 minutes without input, and after 12 hours.",
            ),
            ConsoleTarget::Guest(_) => Some(
                "You are the user of the cloud-init data, else root. The shell ends with `exit`, 15 minutes after this page is \
                 closed or hidden, after 30 minutes without input, and after 12 hours.",
            ),
            ConsoleTarget::Replica(_) => Some(
                "You are the user of the container, with its limits. The program ends with the replica, 15 minutes after this page \
                 is closed or hidden, after 30 minutes without input, and after 12 hours.",
            ),
        }
    }

    fn socket(&self, program: &str) -> String {
        match self {
            ConsoleTarget::Vm(vm) => api::OPEN_VM_CONSOLE.path([vm]).as_str().to_owned(),
            ConsoleTarget::Node(node) => of_shell(api::OPEN_NODE_SHELL.path([node])),
            ConsoleTarget::Guest(vm) => of_shell(api::OPEN_VM_SHELL.path([vm])),
            ConsoleTarget::Replica(id) => {
                let argv: Vec<&str> = program.split_whitespace().collect();
                let argv = serde_json::to_string(&argv).unwrap_or_default();
                of_shell(api::OPEN_CONTAINER_EXEC.path([id]).with("argv", argv))
            }
        }
    }

    /// Returns the request for the WebSocket. `program` is that of a target that takes one, with its
    /// arguments.
    pub(crate) fn address(&self, program: &str) -> String {
        format!("ws://meshd{}", self.socket(program))
    }
}

/// Adds the terminal of the emulator to the path of a shell.
fn of_shell(path: GetPath<Empty>) -> String {
    let (rows, columns) = terminal_screen::SIZE;
    let path = path.with("rows", rows).with("columns", columns);
    path.with("terminal", TERMINAL).as_str().to_owned()
}
