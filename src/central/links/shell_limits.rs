//! Limits of shells, of nodes and of guests, and the terminals of their users.

use meshd_proto::{
    shell::{ShellOrder, TerminalName, WindowSize},
    vm::ConsoleId,
};
use meshd_types::one_line;
use std::time::Duration;

/// Longest part of a text of the node in an event, in characters.
const MAX_END: usize = 200;
/// Time after [`ShellLimits::total`] at which the node ends a shell that the central node did not
/// end.
const NODE_MARGIN: Duration = Duration::from_secs(60);

/// Limits of a shell. Somebody leaves the terminal open for a week.
#[derive(Clone, Copy, Debug)]
pub struct ShellLimits {
    /// Time without input after which a shell ends.
    pub idle: Duration,
    /// Time before the end of an idle shell at which its user is warned.
    pub warning: Duration,
    /// Time after which a shell ends in any case.
    pub total: Duration,
}

impl Default for ShellLimits {
    fn default() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        ShellLimits { idle: minutes(30), warning: minutes(1), total: minutes(12 * 60) }
    }
}

/// The terminal of the user of a shell.
#[derive(Clone, Debug)]
pub struct ShellTerminal {
    pub window: WindowSize,
    pub name: TerminalName,
}

impl ShellTerminal {
    pub(crate) fn order(self, console: ConsoleId) -> ShellOrder {
        let max_s = (ShellLimits::default().total + NODE_MARGIN).as_secs();
        let max_s = u32::try_from(max_s).unwrap_or(u32::MAX);
        ShellOrder { console, window: self.window, terminal: self.name, max_s }
    }
}

/// Returns the detail of the event that records the end of a shell. `why` may contain words of the
/// node.
pub(crate) fn end_detail(why: &str) -> String {
    let why: String = one_line(why).to_string().chars().take(MAX_END).collect();
    format!("the shell ended: {why}")
}
