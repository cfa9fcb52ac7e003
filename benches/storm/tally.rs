//! What happened: how long each step took on each machine, what was repeated, who gave up.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Steps in the order of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Dhcp,
    Loader,
    IpxeDhcp,
    Script,
    Bulk,
    Overlay,
    OsDhcp,
    Modloop,
    Enrol,
    Link,
    Return,
}

/// With the words of the table.
pub const STEPS: [(Step, &str); 11] = [
    (Step::Dhcp, "DHCP of the firmware"),
    (Step::Loader, "loader by TFTP"),
    (Step::IpxeDhcp, "DHCP of iPXE"),
    (Step::Script, "entry script and script"),
    (Step::Bulk, "kernel, initramfs, packages"),
    (Step::Overlay, "overlay"),
    (Step::OsDhcp, "DHCP of Linux"),
    (Step::Modloop, "modloop"),
    (Step::Enrol, "key, TLS, certificate"),
    (Step::Link, "TLS, link, facts, checks"),
    (Step::Return, "link lost to link again"),
];

/// Written by all machines.
#[derive(Default)]
pub struct Tally(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    steps: BTreeMap<Step, Vec<Duration>>,
    /// What was tried again, by cause.
    repeats: BTreeMap<String, u64>,
    gave_up: BTreeMap<String, u64>,
}

impl Tally {
    fn with<T>(&self, edit: impl FnOnce(&mut Inner) -> T) -> T {
        edit(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A machine finished a step.
    pub fn took(&self, step: Step, time: Duration) {
        self.with(|inner| inner.steps.entry(step).or_default().push(time));
    }

    /// A machine has to do something again.
    pub fn repeated(&self, cause: impl Into<String>, times: u32) {
        if times > 0 {
            self.with(|inner| *inner.repeats.entry(cause.into()).or_default() += u64::from(times));
        }
    }

    /// A machine went back to its firmware.
    pub fn gave_up(&self, cause: String) {
        self.with(|inner| *inner.gave_up.entry(cause).or_default() += 1);
    }

    /// Machines that finished a step.
    pub fn finished(&self, step: Step) -> usize {
        self.with(|inner| inner.steps.get(&step).map_or(0, Vec::len))
    }

    /// How many gave up.
    pub fn lost(&self) -> u64 {
        self.with(|inner| inner.gave_up.values().sum())
    }

    /// Prints every step, but for the return.
    pub fn print(&self) {
        println!(
            "{:<40} {:>8} {:>9} {:>9} {:>9} {:>9}",
            "step, seconds", "machines", "p50", "p90", "p99", "max"
        );
        self.with(|inner| {
            for (step, name) in STEPS.into_iter().filter(|(step, _)| *step != Step::Return) {
                print_times(name, inner.steps.entry(step).or_default());
            }
        });
    }

    pub fn print_step(&self, step: Step) {
        let name = STEPS.iter().find(|(one, _)| *one == step).map_or("", |(_, name)| name);
        self.with(|inner| print_times(name, inner.steps.entry(step).or_default()));
    }

    /// Prints what went wrong.
    pub fn print_faults(&self) {
        self.with(|inner| {
            for (cause, times) in &inner.repeats {
                println!("repeated {times:>7} x {cause}");
            }
            for (cause, times) in &inner.gave_up {
                println!("gave up  {times:>7} x {cause}");
            }
        });
    }
}

/// One row of percentiles.
pub fn print_times(name: &str, times: &mut [Duration]) {
    times.sort();
    let at = |part: f64| {
        let index = ((times.len() as f64 * part).ceil() as usize).saturating_sub(1);
        times.get(index).map_or(f64::NAN, Duration::as_secs_f64)
    };
    println!(
        "{name:<40} {:>8} {:>9.3} {:>9.3} {:>9.3} {:>9.3}",
        times.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
}
