//! The command line of `meshd`. Each command has one file.
//!
//! | module | content |
//! | --- | --- |
//! | `access` | commands for credentials |
//! | `client` | HTTP client of the admin API, over the Unix socket or TLS |
//! | `image` | `meshd image`: builds, imports, lists and verifies images |
//! | `lab` | `meshd lab`: a test rack in QEMU on this machine |
//! | `local` | commands that need neither a central node nor a site |
//! | `node` | `meshd node`: lists, shows, approves and configures nodes |
//! | `output` | output for people and programs |
//! | `overlay` | `meshd overlay`: creates, checks, renders and compares overlays |
//! | `profile` | `meshd profile`: lists, shows and rolls back profiles |
//! | `rollout` | `meshd rollout` and `meshd bisect`: changes of many nodes |
//! | `site` | commands for the site as a whole |
//! | `task` | `meshd task`: runs and cancels programs on nodes, and prints their output |
//! | `vm` | `meshd vm` and `meshd container`: VMs and containers with their volumes and slots |
//!
//! Results go to standard output, messages to standard error. Exit codes: 0 success, 1 refused or
//! failed, 2 usage error. Commands that need the central node use its admin API. Other commands
//! work without the central node and never open its store.

#[macro_use]
mod output;

mod access;
mod client;
mod image;
pub mod lab;
mod local;
mod node;
mod overlay;
mod profile;
mod rollout;
mod site;
mod task;
mod vm;

pub use output::failure::Failure;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum, error::ErrorKind};
use meshd_api::Finding;
use meshd_config::Site;
use output::given_options::GivenOptions;
use rollout::Confirmation;
use std::{
    cell::Cell,
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// One central node boots a rack of diskless machines.
#[derive(Debug, Parser)]
#[command(name = "meshd", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

/// Options of every command
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
struct Global {
    /// Site file [default: ./site.toml or /etc/meshd/site.toml]
    #[arg(long, global = true, value_name = "FILE", env = "MESHD_SITE")]
    site: Option<PathBuf>,
    /// Reason, for the audit log and the events
    #[arg(long, global = true, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    remote: client::remote::Remote,
    /// Admin socket, instead of [admin].socket of the site
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MESHD_SOCKET",
        conflicts_with = "server"
    )]
    socket: Option<PathBuf>,
    /// Format of log lines on standard error
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Write a site file for this machine
    Init(site::init::Init),
    /// Run the central node
    Serve(site::serve::Serve),
    /// Reload site, overlays and images, all or nothing
    Reload(site::reload::ReloadCommand),
    /// Validate site, overlays and images, offline
    Check(site::check::Check),
    /// Manage nodes
    #[command(subcommand)]
    Node(node::Node),
    /// Show where the minutes of boots go
    BootTimes(node::boots::boot_times::BootTimes),
    /// Inspect and roll back profiles
    #[command(subcommand)]
    Profile(profile::Profile),
    /// Write, render and compare overlays
    #[command(subcommand)]
    Overlay(overlay::OverlayCommand),
    /// Build, import and promote images
    #[command(subcommand)]
    Image(image::Image),
    /// Build and list bundles of software
    #[command(subcommand)]
    Bundle(image::bundle::Bundle),
    /// Manage virtual machines (VMs)
    #[command(subcommand)]
    Vm(vm::Vm),
    /// Approve and release slots for VMs
    #[command(subcommand)]
    Slot(vm::slot::SlotCommand),
    /// Manage volume files of VMs
    #[command(subcommand)]
    Volume(vm::volume::Volume),
    /// Run containers on nodes
    #[command(subcommand)]
    Container(vm::container::ContainerCommand),
    /// Run programs on nodes, also MPI
    #[command(subcommand)]
    Task(task::Task),
    /// Issue tickets for machines that do not netboot
    #[command(subcommand)]
    Token(access::token::Token),
    /// Manage the certificate authority
    #[command(subcommand)]
    Ca(access::ca::Ca),
    /// Show segments, leases and other DHCP servers
    #[command(subcommand)]
    Dhcp(site::dhcp::Dhcp),
    /// List, follow and cancel orders to nodes
    #[command(subcommand)]
    Operation(node::operation::OperationCommand),
    /// Change many nodes in waves, with a floor
    #[command(subcommand)]
    Rollout(Box<rollout::RolloutCommand>),
    /// Find the first bad generation of a profile
    Bisect(rollout::Bisect),
    /// List boots, drains, VMs and tasks that are not finished
    Activities(site::activities::Activities),
    /// Find nodes, VMs, containers and tasks by a text
    Search(site::search::Search),
    /// Show and follow events
    Events(site::history::events::Events),
    /// Show how counts and times changed within 90 days
    #[command(subcommand)]
    Series(site::history::series::SeriesCommand),
    /// Create, verify and restore backups
    #[command(subcommand)]
    Backup(site::backup::Backup),
    /// Show whether the site is ready, and its problems
    Status(site::status::StatusCommand),
    /// Show the audit log
    Audit(site::history::audit::Audit),
    /// Manage API tokens
    #[command(subcommand)]
    ApiToken(access::api_token::ApiToken),
    /// Collect facts about a problem, without secrets
    SupportBundle(site::support_bundle::SupportBundle),
    /// Find problems that keep machines from booting
    Doctor(site::doctor::Doctor),
    /// Serve the web UI on this machine, and print a link
    Ui(site::ui::Ui),
    /// Compute the node ID of a machine
    Id(local::id::Id),
    /// Run a test rack in QEMU on this machine
    Lab(lab::LabArgs),
    /// Print a completion script for a shell
    Completions(local::completions::Completions),
    /// Print the words that complete a command line
    #[command(hide = true)]
    Complete(local::complete::Complete),
    /// Write the manual pages into a folder
    #[command(hide = true)]
    ManPages(local::completions::ManPages),
}

/// Global options of a command.
struct Context {
    site: Option<PathBuf>,
    reason: Option<String>,
    remote: client::remote::Remote,
    socket: Option<PathBuf>,
    /// True after the note about local files was printed.
    noted: Cell<bool>,
}

impl Context {
    fn of(global: Global) -> Self {
        let Global { site, reason, remote, socket, .. } = global;
        Context { site, reason, remote, socket, noted: Cell::new(false) }
    }

    /// Returns true if the command uses a central node on another machine.
    fn is_remote(&self) -> bool {
        self.remote.is_named()
    }

    /// Returns true if the command names a central node and no site file.
    fn has_no_site(&self) -> bool {
        self.site.is_none() && (self.is_remote() || self.socket.is_some())
    }

    /// Returns the path of the named site file, else of the default one. With `--server`, prints a
    /// note that the results are local.
    fn site_file(&self) -> Result<PathBuf, Failure> {
        let file = meshd_config::find(self.site.as_deref())?;
        if let Some(server) = self.remote.url_text().filter(|_| !self.noted.replace(true)) {
            message!(
                "note: local files are read, {} and what it names; {server} is not asked for them",
                path_text(&file)
            );
        }
        Ok(file)
    }

    /// Loads and validates the site.
    fn site(&self) -> Result<Site, Failure> {
        Ok(meshd_config::load(&self.site_file()?)?)
    }

    /// Returns a client for the named server or socket, else for the central node of the site. A
    /// faulty site file does not prevent access to a running meshd: only the next reload reads the
    /// file.
    fn client(&self) -> Result<client::AdminClient, Failure> {
        if let Some(server) = self.remote.server()? {
            return Ok(client::AdminClient::of_server(server, self.reason.clone()));
        }
        if let Some(socket) = &self.socket {
            return Ok(client::AdminClient::of_socket(socket.clone(), None, self.reason.clone()));
        }
        let socket = meshd_config::default_admin_socket();
        let file = match self.site_file() {
            Ok(file) => file,
            // Without a site file, the default socket serves commands in any folder.
            Err(_) if self.site.is_none() && socket.exists() => {
                return Ok(client::AdminClient::of_socket(socket, None, self.reason.clone()));
            }
            Err(failure) => return Err(failure),
        };
        let socket = match meshd_config::load(&file) {
            Ok(site) => site.admin.socket,
            Err(faults) => meshd_config::admin_socket(&file).ok_or_else(|| {
                let first = faults.0.first().map(ToString::to_string).unwrap_or_default();
                let message = format!(
                    "cannot find the admin socket: {}",
                    first.lines().next().unwrap_or_default()
                );
                Failure::new(
                    message,
                    "correct it, or name the socket of the running meshd with --socket FILE",
                )
            })?,
        };
        Ok(client::AdminClient::of_socket(socket, Some(file), self.reason.clone()))
    }

    /// Returns the fault of the site file that the running meshd reads at its next reload or start.
    /// Returns `None` if the file is valid or is on another machine.
    fn next_reload(&self) -> Option<Finding> {
        if self.is_remote() {
            return None;
        }
        let file = meshd_config::find(self.site.as_deref()).ok()?;
        let faults = meshd_config::load(&file).err()?.0;
        let first = faults.first().map(ToString::to_string).unwrap_or_default();
        let first = first.lines().next().unwrap_or_default();
        let count = match faults.len() {
            1 => "1 fault".to_owned(),
            many => format!("{many} faults"),
        };
        let found = format!("{count}, so the next reload is refused and a restart fails: {first}");
        Some(Finding::warn(
            "site file",
            found,
            "correct it, then `meshd reload`; `meshd check` shows all faults",
        ))
    }
}

/// Parses the command line of this process and runs its command.
pub fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    match Cli::try_parse_from(&words) {
        Ok(cli) => run(cli),
        Err(error) => match parse_foreign_verb(&error, &words) {
            Some(cli) => run(cli),
            None => output::usage_error::print(error, &words),
        },
    }
}

/// Parses a command with a verb of another program, and names the verb of this one.
fn parse_foreign_verb(error: &clap::Error, words: &[OsString]) -> Option<Cli> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let program = words.first()?;
    let words: Vec<String> =
        words.iter().skip(1).map(|word| word.to_str().map(str::to_owned)).collect::<Option<_>>()?;
    let mut command = Cli::command();
    command.build();
    let translated = output::foreign_verbs::translated(&command, &words)?;
    let cli = Cli::try_parse_from(
        [program].into_iter().cloned().chain(translated.iter().map(OsString::from)),
    )
    .ok()?;
    message!("note: this runs `meshd {}`", output::clean::clean(&translated.join(" ")));
    Some(cli)
}

/// Runs one command after the command line has been parsed.
fn run(cli: Cli) -> ExitCode {
    start_log(&cli.global, matches!(cli.verb, Verb::Serve(_)));
    // Commands in messages of the lab concern the rack's site file, which they name.
    if !matches!(cli.verb, Verb::Lab(_)) {
        given_options(&cli.global).apply();
    }
    let context = Context::of(cli.global);
    let done = match cli.verb {
        Verb::Init(init) => init.run(&context),
        Verb::Serve(serve) => serve.run(&context),
        Verb::Reload(reload) => reload.run(&context),
        Verb::Check(check) => check.run(&context),
        Verb::Node(node::Node::Reboot { targets, max: Some(wave), wait, yes, .. }) => {
            rollout::reboot_in_waves(&context, targets, wave, Confirmation::new(yes, wait))
        }
        Verb::Node(node) => node.run(&context),
        Verb::BootTimes(times) => times.run(&context),
        Verb::Profile(profile) => profile.run(&context),
        Verb::Overlay(overlay) => overlay.run(&context),
        Verb::Image(image) => image.run(&context),
        Verb::Bundle(bundle) => bundle.run(&context),
        Verb::Slot(slot) => slot.run(&context),
        Verb::Vm(vm) => vm.run(&context),
        Verb::Volume(volume) => volume.run(&context),
        Verb::Container(container) => container.run(&context),
        Verb::Task(task) => task.run(&context),
        Verb::Token(token) => token.run(&context),
        Verb::Ca(ca) => ca.run(&context),
        Verb::Dhcp(dhcp) => dhcp.run(&context),
        Verb::Operation(operation) => operation.run(&context),
        Verb::Rollout(rollout) => rollout.run(&context),
        Verb::Bisect(bisect) => bisect.run(&context),
        Verb::Activities(activities) => activities.run(&context),
        Verb::Search(search) => search.run(&context),
        Verb::Events(events) => events.run(&context),
        Verb::Series(series) => series.run(&context),
        Verb::Backup(backup) => backup.run(&context),
        Verb::SupportBundle(bundle) => bundle.run(&context),
        Verb::Status(status) => status.run(&context),
        Verb::Audit(audit) => audit.run(&context),
        Verb::ApiToken(token) => token.run(&context),
        Verb::Doctor(doctor) => doctor.run(&context),
        Verb::Ui(ui) => ui.run(&context),
        Verb::Id(id) => id.run(&context),
        Verb::Lab(lab) => lab.run(&context),
        Verb::Completions(completions) => completions.run(),
        Verb::Complete(complete) => complete.run(),
        Verb::ManPages(pages) => pages.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe, as in `meshd events | head`.
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            failure.code()
        }
    }
}

/// Returns the options that commands in messages need.
fn given_options(global: &Global) -> GivenOptions {
    let command = Cli::command();
    let verbs = command.get_subcommands().map(|verb| verb.get_name().to_owned());
    let mut given = GivenOptions::new(verbs.collect());
    given.add_site("--site", "MESHD_SITE", global.site.as_deref().map(Path::as_os_str));
    given.add_central("--socket", "MESHD_SOCKET", global.socket.as_deref().map(Path::as_os_str));
    global.remote.give(&mut given);
    given
}

/// Starts logging, at level info for the daemon and warn for other commands. `MESHD_LOG` contains
/// filter directives of `tracing`.
fn start_log(global: &Global, daemon: bool) {
    let default = if daemon { "info" } else { "warn" };
    let filter = tracing_subscriber::EnvFilter::try_from_env("MESHD_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(output::writer::log_output)
        .with_ansi(false);
    // A closed standard error must not end the program.
    let log = log.log_internal_errors(false);
    // A second subscriber in one process, as in tests, is not an error.
    let _ = match global.log_format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().try_init(),
    };
}

/// Runs the asynchronous part of a command that uses the central node.
fn wait<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime
        .map_err(|error| {
            Failure::new(format!("cannot start: {error}"), "check the limits of this shell")
        })?
        .block_on(work)
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests;
