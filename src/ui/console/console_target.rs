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
}

impl ConsoleTarget {
    /// Returns the path of the page.
    pub(crate) fn page(&self) -> String {
        match self {
            ConsoleTarget::Vm(vm) => format!("{PREFIX}/vms/{}/console", segment(vm)),
            ConsoleTarget::Node(node) => format!("{PREFIX}/nodes/{}/shell", segment(node)),
            ConsoleTarget::Guest(vm) => format!("{PREFIX}/vms/{}/shell", segment(vm)),
        }
    }

    /// Returns true for a target that runs a program while it is open. Only a form opens it.
    pub(crate) fn is_shell(&self) -> bool {
        matches!(self, ConsoleTarget::Node(_) | ConsoleTarget::Guest(_))
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
        }
    }

    fn socket(&self) -> String {
        match self {
            ConsoleTarget::Vm(vm) => api::OPEN_VM_CONSOLE.path([vm]).as_str().to_owned(),
            ConsoleTarget::Node(node) => of_shell(api::OPEN_NODE_SHELL.path([node])),
            ConsoleTarget::Guest(vm) => of_shell(api::OPEN_VM_SHELL.path([vm])),
        }
    }

    /// Returns the request for the WebSocket.
    pub(crate) fn address(&self) -> String {
        format!("ws://meshd{}", self.socket())
    }
}

/// Adds the terminal of the emulator to the path of a shell.
fn of_shell(path: GetPath<Empty>) -> String {
    let (rows, columns) = terminal_screen::SIZE;
    let path = path.with("rows", rows).with("columns", columns);
    path.with("terminal", TERMINAL).as_str().to_owned()
}
