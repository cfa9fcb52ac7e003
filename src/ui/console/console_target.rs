//! What a console is connected to: its page, and its WebSocket of the admin API.

use super::terminal_screen;
use crate::PREFIX;
use meshd_api::{routes as api, segment};

/// The terminal that the emulator and the keys of the page resemble.
const TERMINAL: &str = "xterm";

/// What a console is connected to, by name or ID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConsoleTarget {
    /// The serial port of a VM.
    Vm(String),
    /// A shell of a node.
    Node(String),
}

impl ConsoleTarget {
    /// Returns the path of the page.
    pub(crate) fn page(&self) -> String {
        match self {
            ConsoleTarget::Vm(vm) => format!("{PREFIX}/vms/{}/console", segment(vm)),
            ConsoleTarget::Node(node) => format!("{PREFIX}/nodes/{}/shell", segment(node)),
        }
    }

    fn socket(&self) -> String {
        match self {
            ConsoleTarget::Vm(vm) => api::OPEN_VM_CONSOLE.path([vm]).as_str().to_owned(),
            ConsoleTarget::Node(node) => {
                let (rows, columns) = terminal_screen::SIZE;
                let path = api::OPEN_NODE_SHELL.path([node]);
                let path = path.with("rows", rows).with("columns", columns);
                path.with("terminal", TERMINAL).as_str().to_owned()
            }
        }
    }

    /// Returns the request for the WebSocket.
    pub(crate) fn address(&self) -> String {
        format!("ws://meshd{}", self.socket())
    }
}
