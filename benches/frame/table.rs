//! Figures side by side: ours, the peer's, the ratio, and the goal.

use std::fmt;

/// What a ratio, or a figure without peer, should be.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// Printed for information.
    None,
}

impl Goal {
    /// `None` where there is no goal.
    fn is_met(self, value: f64) -> Option<bool> {
        match self {
            Goal::AtLeast(least) => Some(value >= least),
            Goal::AtMost(most) => Some(value <= most),
            Goal::None => None,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Goal::AtLeast(least) => format!(">= {least}"),
            Goal::AtMost(most) => format!("<= {most}"),
            Goal::None => String::new(),
        };
        f.pad(&text)
    }
}

/// Prints rows as they come, and counts goals.
#[derive(Default)]
pub struct Table {
    met: u32,
    missed: u32,
}

impl Table {
    /// Prints the head.
    pub fn new() -> Self {
        println!(
            "{:<44} {:>8} {:>10} {:>24} {:>7} {:>9}",
            "work", "unit", "ours", "peer", "ratio", "goal"
        );
        Table::default()
    }

    /// One row with a peer; the goal is for the ratio.
    pub fn compare(
        &mut self,
        work: &str,
        unit: &str,
        ours: f64,
        (name, peer): (&str, f64),
        goal: Goal,
    ) {
        let ratio = ours / peer;
        let peer = format!("{name} {}", Figure(peer));
        let verdict = self.judge(goal, ratio);
        println!(
            "{work:<44} {unit:>8} {:>10} {peer:>24} {ratio:>7.2} {goal:>9}{verdict}",
            Figure(ours).to_string()
        );
    }

    /// One row without peer; the goal is for the figure.
    pub fn alone(&mut self, work: &str, unit: &str, ours: f64, goal: Goal) {
        let verdict = self.judge(goal, ours);
        println!(
            "{work:<44} {unit:>8} {:>10} {:>24} {:>7} {goal:>9}{verdict}",
            Figure(ours).to_string(),
            "",
            ""
        );
    }

    /// A line beside the table, such as a peer that is missing.
    pub fn note(&self, text: &str) {
        println!("{text}");
    }

    /// Says that a row is left out because a program is not there.
    pub fn skipped(&self, program: &str) {
        println!("{program} is not installed: skipped");
    }

    fn judge(&mut self, goal: Goal, value: f64) -> &'static str {
        match goal.is_met(value) {
            Some(true) => {
                self.met += 1;
                "  met"
            }
            Some(false) => {
                self.missed += 1;
                "  MISSED"
            }
            None => "",
        }
    }

    /// The last line.
    pub fn finish(self, what: &str) {
        println!("{what}: {} of {} goals met", self.met, self.met + self.missed);
    }
}

/// A number with three or four digits that count.
struct Figure(f64);

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.0.abs() {
            value if value >= 100.0 => 0,
            value if value >= 10.0 => 1,
            _ => 2,
        };
        write!(f, "{:.digits$}", self.0)
    }
}

/// One of those that are compared: `measure` starts it, loads it, stops it, and gives `N` figures.
pub struct Contender<'a, const N: usize> {
    /// For the table.
    pub name: &'static str,
    /// The program that has to be installed.
    pub program: Option<&'static str>,
    /// One run.
    pub measure: Box<dyn FnMut() -> anyhow::Result<[f64; N]> + 'a>,
}

/// Lets everyone run in turns, `runs` times, so that a disturbance hits all of them. Gives the
/// median of each figure, or `None` for a contender that is not installed or failed; that is said,
/// and the others go on.
pub fn medians<const N: usize>(
    runs: usize,
    contenders: &mut [Contender<'_, N>],
) -> Vec<Option<[f64; N]>> {
    let mut samples: Vec<Option<Vec<[f64; N]>>> = contenders
        .iter()
        .map(|contender| match contender.program.filter(|program| !super::installed(program)) {
            Some(missing) => {
                println!("{missing} is not installed: skipped");
                None
            }
            None => Some(Vec::new()),
        })
        .collect();
    for _ in 0..runs {
        for (contender, slot) in contenders.iter_mut().zip(&mut samples) {
            let Some(done) = slot else { continue };
            match (contender.measure)() {
                Ok(sample) => done.push(sample),
                Err(error) => {
                    println!("{} failed: {error:#}", contender.name);
                    *slot = None;
                }
            }
        }
    }
    samples.into_iter().map(|slot| slot.map(median_of_each)).collect()
}

fn median_of_each<const N: usize>(samples: Vec<[f64; N]>) -> [f64; N] {
    std::array::from_fn(|figure| {
        let mut values: Vec<f64> = samples.iter().map(|sample| sample[figure]).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    })
}
