//! The live view of the demo: one line for each node.

use super::progress::Progress;
use crate::NodeStatus;
use std::{
    collections::BTreeSet,
    io::{self, Write},
    time::Duration,
};

/// Default width of a terminal, in columns.
const WIDTH: usize = 80;

pub struct View {
    terminal: bool,
    /// Number of lines to move up before the next drawing.
    drawn: usize,
    /// Stages and phases that were printed: node, session, text.
    printed: BTreeSet<(String, String, String)>,
}

impl View {
    pub fn new(terminal: bool) -> Self {
        View { terminal, drawn: 0, printed: BTreeSet::new() }
    }

    /// Starts the next drawing below the present line. Printed stages are not repeated.
    pub fn begin(&mut self) {
        self.drawn = 0;
    }

    /// Shows new stages and phases; both lists are ordered by position.
    pub fn show(
        &mut self,
        out: &mut dyn Write,
        elapsed: Duration,
        nodes: &[NodeStatus],
        progress: &[Option<Progress>],
    ) -> io::Result<()> {
        if self.terminal {
            self.draw(out, elapsed, nodes, progress)?;
        } else {
            self.list(out, elapsed, nodes, progress)?;
        }
        out.flush()
    }

    fn draw(
        &mut self,
        out: &mut dyn Write,
        elapsed: Duration,
        nodes: &[NodeStatus],
        progress: &[Option<Progress>],
    ) -> io::Result<()> {
        if self.drawn > 0 {
            write!(out, "\x1b[{}A", self.drawn)?;
        }
        writeln!(out, "\x1b[K{:>4} s", elapsed.as_secs())?;
        let firmware =
            nodes.iter().map(|node| node.firmware.to_string().len()).max().unwrap_or_default();
        for (node, progress) in nodes.iter().zip(progress) {
            let phase = progress.as_ref().map_or("power on", |progress| progress.phase.as_str());
            let prefix =
                format!("  {} {} {:<firmware$} {phase:<9} ", node.name, node.id, node.firmware);
            let width = WIDTH.saturating_sub(prefix.chars().count());
            let stages =
                progress.as_ref().map(|progress| stage_list(progress, width)).unwrap_or_default();
            // Disable line wrap while printing, because a wrapped line cannot be redrawn in place.
            writeln!(out, "\x1b[K\x1b[?7l{prefix}{stages}\x1b[?7h")?;
        }
        self.drawn = nodes.len() + 1;
        Ok(())
    }

    fn list(
        &mut self,
        out: &mut dyn Write,
        elapsed: Duration,
        nodes: &[NodeStatus],
        progress: &[Option<Progress>],
    ) -> io::Result<()> {
        for (node, progress) in nodes.iter().zip(progress) {
            let Some(progress) = progress else { continue };
            let stages = progress.stages.iter().map(|(stage, _)| format!("reached {stage}"));
            for text in stages.chain([format!("is {}", progress.phase)]) {
                if self.printed.insert((node.name.clone(), progress.session.clone(), text.clone()))
                {
                    writeln!(
                        out,
                        "{:>5} s  {} ({}) {text}",
                        elapsed.as_secs(),
                        node.name,
                        node.firmware
                    )?;
                }
            }
        }
        Ok(())
    }
}

/// Returns `dhcp · script +2.1 · kernel +0.4`: each stage with the seconds since the previous
/// stage. `…` replaces the first stages if the line is too long.
fn stage_list(progress: &Progress, width: usize) -> String {
    const BETWEEN: &str = " · ";
    const LEFT_OUT: &str = "… ";
    let mut before = None;
    let mut parts = Vec::new();
    for (stage, at) in &progress.stages {
        let span =
            at.zip(before).map(|(at, before)| format!(" +{:.1}", at.since(before).as_secs_f64()));
        before = at.or(before);
        parts.push(format!("{stage}{}", span.unwrap_or_default()));
    }
    for from in 0..parts.len() {
        let text = parts[from..].join(BETWEEN);
        let text = if from == 0 { text } else { format!("{LEFT_OUT}{text}") };
        if text.chars().count() <= width {
            return text;
        }
    }
    LEFT_OUT.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Firmware, Identity};
    use meshd_types::Timestamp;

    fn node() -> NodeStatus {
        let identity = Identity::at(1);
        let name = "node1".to_owned();
        let id = identity.node_id();
        let mac = identity.mac;
        NodeStatus {
            name,
            id,
            firmware: Firmware::Bios,
            mac,
            power: "on",
            pid: None,
            serial: "/s".into(),
        }
    }

    fn progress(stages: &[(&str, i64)]) -> Option<Progress> {
        let stage =
            |(stage, at): &(&str, i64)| ((*stage).to_owned(), Some(Timestamp::from_millis(*at)));
        let stages = stages.iter().map(stage).collect();
        Some(Progress {
            phase: "booting".to_owned(),
            session: "s".to_owned(),
            stages,
            ..Progress::default()
        })
    }

    fn shown(view: &mut View, stages: &[(&str, i64)]) -> String {
        let mut out = Vec::new();
        view.show(&mut out, Duration::from_secs(7), &[node()], &[progress(stages)])
            .expect("a vector takes all");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn output_without_terminal_has_one_line_per_stage() {
        let mut view = View::new(false);
        let first = shown(&mut view, &[("dhcp", 0)]);
        assert_eq!(first, "    7 s  node1 (bios) reached dhcp\n    7 s  node1 (bios) is booting\n");
        assert_eq!(shown(&mut view, &[("dhcp", 0)]), "");
        assert_eq!(
            shown(&mut view, &[("dhcp", 0), ("script", 9)]),
            "    7 s  node1 (bios) reached script\n"
        );
    }

    #[test]
    fn terminal_is_redrawn_in_place_with_stage_times() {
        let mut view = View::new(true);
        assert!(!shown(&mut view, &[("dhcp", 0)]).contains("\x1b[2A"));
        let again = shown(&mut view, &[("dhcp", 0), ("script", 2_100)]);
        assert!(again.starts_with("\x1b[2A") && again.contains("dhcp · script +2.1"), "{again}");
    }

    #[test]
    fn node_line_fits_80_columns_and_ends_with_latest_stage() {
        let chain = [
            "dhcp",
            "loader",
            "ipxe_dhcp",
            "script",
            "kernel",
            "initramfs",
            "packages",
            "overlay",
            "os_dhcp",
        ];
        let at = |count: usize| {
            let stages: Vec<_> =
                chain[..count].iter().map(|stage| (*stage, 10_000 * count as i64)).collect();
            let drawn = shown(&mut View::new(true), &stages);
            crate::plain(drawn.as_bytes()).lines().nth(1).expect("a line for the node").to_owned()
        };
        for count in 1..=chain.len() {
            let line = at(count);
            assert!(line.chars().count() <= WIDTH, "{} columns: {line}", line.chars().count());
            assert!(line.contains(chain[count - 1]), "{line}");
        }
        assert!(!at(3).contains('…') && at(9).contains("… "), "{}", at(9));
    }

    #[test]
    fn unknown_node_shows_power_on() {
        let mut out = Vec::new();
        View::new(true)
            .show(&mut out, Duration::ZERO, &[node()], &[None])
            .expect("a vector takes all");
        assert!(String::from_utf8_lossy(&out).contains("power on"));
    }
}
