//! `meshd lab try`: boots one node with a profile and opens its console.

use super::Hardware;
use crate::cli::{
    Context, Failure,
    output::writer::{ForeignOutput, RawOutput, raw_output},
};
use anyhow::Context as _;
use clap::Args;
use meshd_lab::{
    Console, ConsoleEnd, Firmware, Interrupt, LabError, Mix, Power, Rack, RawTerminal, with_login,
};
use std::{
    env, fs,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    time::Instant,
};

/// Folder of images that an earlier rack built.
const BLOBS: &str = ".lab/blobs";
/// Number of the only node.
const NODE: u8 = 1;
/// Number of lines of each log that are printed after a failure.
const LOG_LINES: usize = 20;

/// Usage text that follows the options.
pub(super) const HELP: &str = "\
At a terminal the node's console is yours, and root logs in without a password once it has booted; Ctrl-] leaves it. Otherwise \
what the node writes is printed, until it is ended by Ctrl-C or is in the phase of --until. Images are taken from .lab/blobs \
where --blobs names no other folder.";

#[derive(Debug, Args)]
pub(super) struct Try {
    /// Profile to boot
    #[arg(long, value_name = "PROFILE")]
    profile: String,
    /// Firmware: bios, uefi or uefi-http
    #[arg(long, default_value = "bios")]
    firmware: Firmware,
    /// Stop when the node reaches this phase
    #[arg(long, value_name = "PHASE")]
    until: Option<String>,
    /// Add no login to the profile
    #[arg(long)]
    bare: bool,
    #[command(flatten)]
    hardware: Hardware,
}

/// A folder that is deleted on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Failure> {
        let dir = env::temp_dir().join(format!("meshd-try-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Folder(dir))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            message!("{} is left behind: {error}", self.0.display());
        }
    }
}

impl Try {
    pub(super) fn run(mut self, context: &Context, interrupt: &Interrupt) -> Result<(), Failure> {
        self.hardware.blobs.get_or_insert_with(|| PathBuf::from(BLOBS));
        let blobs = self
            .hardware
            .blobs
            .iter()
            .map(|dir| absolute(dir))
            .collect::<Result<Vec<_>, _>>()?
            .pop();
        // The folder is created before the rack, so that it is dropped after the rack.
        let folder = Folder::new()?;
        let options = self.hardware.options(folder.0.clone(), context, interrupt.clone())?;
        let mut options =
            options.set("enroll.policy", "auto").set("defaults.profile", &self.profile);
        (options.nodes, options.powered, options.console, options.blobs) = (1, false, true, blobs);
        options.only_profile = Some(self.profile.clone());
        options.firmware = Mix::of([self.firmware]);
        let options = if self.bare { options } else { with_login(options)? };
        let mut rack = Rack::up(&options, &mut |message| message!("{message}"))?;
        let tried = show_boot(&mut rack, self.until.as_deref(), interrupt);
        if tried.is_err() {
            message!("\n{}", rack.log_ends(LOG_LINES));
        }
        rack.down()?;
        tried
    }
}

fn absolute(dir: &Path) -> Result<PathBuf, Failure> {
    Ok(std::path::absolute(dir).with_context(|| format!("cannot find {}", dir.display()))?)
}

fn show_boot(rack: &mut Rack, until: Option<&str>, interrupt: &Interrupt) -> Result<(), Failure> {
    rack.power(NODE, Power::On)?;
    let console = Console { port: rack.console(NODE)?, interrupt };
    let begun = Instant::now();
    let done = || -> Result<bool, LabError> {
        let Some(phase) = until else { return Ok(false) };
        Ok(rack.node(NODE)?.is_some_and(|node| node["phase"] == phase))
    };
    let stdin = io::stdin();
    let left = if stdin.is_terminal() && io::stdout().is_terminal() {
        message!("the console of node {}: Ctrl-] leaves it, and everything is gone", rack.id(NODE));
        let _raw = RawTerminal::of(&stdin).context("cannot take the terminal")?;
        console.relay_console(Some(keyboard()?), &mut raw_output(), done)
    } else {
        console.relay_console(None::<fs::File>, &mut ForeignOutput::new(RawOutput::default()), done)
    }?;
    match (left, until) {
        (ConsoleEnd::Ended, _) => {
            Err(Failure::new("the node has ended", "its last words are above"))
        }
        (ConsoleEnd::ByUser, Some(phase)) => Err(Failure::new(
            format!("left before the node was {phase}"),
            "wait longer, or leave --until out",
        )),
        (ConsoleEnd::Reached, Some(phase)) => {
            message!(
                "\nnode {} is {phase}, {} s after power-on",
                rack.id(NODE),
                begun.elapsed().as_secs()
            );
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Opens standard input without a buffer, which would delay key presses.
fn keyboard() -> Result<fs::File, Failure> {
    use std::os::fd::AsFd as _;
    let own = io::stdin().as_fd().try_clone_to_owned().context("cannot read the terminal")?;
    Ok(fs::File::from(own))
}
