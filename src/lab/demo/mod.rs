//! `make demo`: boots a BIOS and a UEFI machine, then moves one to another profile.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `progress` | the boot progress of a node, from `meshd node list -o json` |
//! | `view` | the live view of the demo: one line for each node |

mod progress;
mod view;

use super::{LabError, Options, Rack, Wait};
use progress::Progress;
use serde_json::Value;
use std::{
    io::{self, Write},
    time::{Duration, Instant},
};
use view::View;

/// Time limit of the whole demo.
const DEADLINE: Duration = Duration::from_secs(25 * 60);
/// Number of lines of each log that a failure shows.
const LOG_LINES: usize = 40;

pub struct Demo {
    pub options: Options,
    /// Profile to which the demo reassigns the last node.
    pub profile: String,
    /// Keep the rack after the demo.
    pub keep: bool,
    /// Redraw the view in place, because the output is a terminal.
    pub terminal: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The rack or a node failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// Standard output is closed.
    #[error("cannot print")]
    Print(#[from] io::Error),
}

meshd_types::hints!(DemoError {
    @source DemoError::Lab(source) => source;
});

impl Demo {
    /// Runs the demo. A failure prints the ends of all logs and removes the rack.
    pub fn run(&self, out: &mut dyn Write) -> Result<(), DemoError> {
        let start = Instant::now();
        let mut rack = Rack::up(&self.options, &mut |word| {
            let _ = writeln!(out, "{word}");
        })?;
        let view = View::new(self.terminal);
        let result = Script { demo: self, rack: &mut rack, out, start, view }.play();
        if let Err(error) = result {
            writeln!(out, "\n{}", rack.log_ends(LOG_LINES))?;
            return Err(error);
        }
        let nodes = rack.size();
        if self.keep {
            print_commands(&rack, out)?;
            rack.detach();
        } else {
            rack.down()?;
        }
        let seconds = start.elapsed().as_secs();
        writeln!(
            out,
            "demo: {nodes} nodes online, {} assigned and booted, {seconds} s",
            self.profile
        )?;
        Ok(())
    }
}

/// A running demo.
struct Script<'a> {
    demo: &'a Demo,
    rack: &'a mut Rack,
    out: &'a mut dyn Write,
    start: Instant,
    view: View,
}

impl Script<'_> {
    fn play(&mut self) -> Result<(), DemoError> {
        self.title("Power on: firmware, iPXE, Alpine, agent")?;
        self.watch("all nodes to be online", |nodes| {
            nodes.iter().flatten().filter(|node| node.phase == "online").count() == nodes.len()
        })?;
        self.title("The rack")?;
        self.show(&["node", "list"])?;
        for position in 1..=self.rack.size() {
            let id = self.rack.id(position).to_string();
            self.title(&format!("Where the time of node{position} ({id}) went"))?;
            self.show(&["node", "timeline", &id])?;
        }
        self.reassign()?;
        self.title("The rack now")?;
        self.show(&["node", "list"])?;
        self.show_systems()
    }

    /// Prints the operating system of each node, as its agent reports it.
    fn show_systems(&mut self) -> Result<(), DemoError> {
        for position in 1..=self.rack.size() {
            let node = self.rack.query(&["node", "show", &self.rack.id(position).to_string()])?;
            writeln!(self.out, "node{position} runs {}", system(&node))?;
        }
        Ok(())
    }

    /// Assigns another profile to the last node with a reboot, and waits until the node runs it.
    fn reassign(&mut self) -> Result<(), DemoError> {
        let position = self.rack.size();
        let id = self.rack.id(position).to_string();
        let profile = self.demo.profile.clone();
        let before =
            self.rack.node(position)?.map(|node| Progress::read(&node)).unwrap_or_default();
        self.title(&format!("node{position} becomes `{profile}`: assign, reboot"))?;
        self.show(&["node", "assign-profile", &id, &profile, "--reboot"])?;
        self.watch("the node to be online with its new profile", |nodes| {
            nodes.last().and_then(Option::as_ref).is_some_and(|node| {
                let booted_anew =
                    node.session != before.session && node.generation != before.generation;
                node.phase == "online" && node.profile == profile && booted_anew
            })
        })?;
        self.title(&format!("Where the time of node{position} ({id}) went this time"))?;
        self.show(&["node", "timeline", &id])
    }

    /// Shows stages until `done` returns true.
    fn watch(
        &mut self,
        awaited: &str,
        done: impl Fn(&[Option<Progress>]) -> bool,
    ) -> Result<(), DemoError> {
        self.view.begin();
        let left = DEADLINE.saturating_sub(self.start.elapsed());
        let out = &mut *self.out;
        let view = &mut self.view;
        let start = self.start;
        self.rack.wait(left, awaited, |rack| {
            let known = rack.nodes()?;
            let nodes: Vec<Option<Progress>> =
                (1..=rack.size()).map(|position| find(rack, position, &known)).collect();
            // Ignore output errors: the demo continues if the terminal was closed.
            let _ = view.show(out, start.elapsed(), &rack.status().nodes, &nodes);
            let seen = nodes
                .iter()
                .map(|node| node.as_ref().map_or("unknown", |node| node.phase.as_str()));
            Ok(Wait::on(done(&nodes), seen.collect::<Vec<_>>().join(", ")))
        })?;
        Ok(())
    }

    /// Runs a verb of the CLI and prints its output.
    fn show(&mut self, args: &[&str]) -> Result<(), DemoError> {
        writeln!(self.out, "$ meshd {}", args.join(" "))?;
        let result = self.rack.run_cli(args)?;
        write!(self.out, "{result}")?;
        Ok(())
    }

    fn title(&mut self, title: &str) -> Result<(), DemoError> {
        writeln!(self.out, "\n== {title}")?;
        Ok(())
    }
}

/// Returns the operating system of a node of `meshd node show`, with its kernel.
fn system(node: &Value) -> String {
    let version = |key: &str| node["facts"]["versions"][key].as_str().unwrap_or("unknown");
    format!("{}, kernel {}", version("os"), version("kernel"))
}

fn find(rack: &Rack, position: u8, known: &[Value]) -> Option<Progress> {
    let id = rack.id(position).to_string();
    known.iter().find(|node| node["id"] == id.as_str()).map(Progress::read)
}

fn print_commands(rack: &Rack, out: &mut dyn Write) -> io::Result<()> {
    let site = rack.site_file().display();
    writeln!(out, "\n== The rack stays up")?;
    writeln!(out, "meshd --site {site} node list         every verb works with this site file")?;
    writeln!(out, "meshd --site {site} events --follow")?;
    writeln!(out, "meshd --site {site} ui                prints a link to the web UI")?;
    let dir = rack.dir().display();
    writeln!(out, "meshd lab status --dir {dir}          what runs, and where the logs are")?;
    writeln!(out, "meshd lab console node1 --dir {dir}   a node's serial port")?;
    writeln!(out, "meshd lab down --dir {dir}            ends it all")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn system_of_node_has_release_and_kernel() {
        let versions =
            json!({ "os": "Debian GNU/Linux 12 (bookworm)", "kernel": "6.1.0-42-amd64" });
        assert_eq!(
            system(&json!({ "facts": { "versions": versions } })),
            "Debian GNU/Linux 12 (bookworm), kernel 6.1.0-42-amd64"
        );
        assert_eq!(system(&json!({})), "unknown, kernel unknown");
    }
}
