//! The program `mesh-agent` of a node: parses arguments, runs, and sets the exit code.

use clap::{Parser, Subcommand, ValueEnum};
use meshd_agent::checks;
use meshd_agent::container::{runtime as container_runtime, supervisor};
use meshd_agent::facts;
use meshd_agent::files;
use meshd_agent::link_driver;
use meshd_agent::system::{Tree, keyrings};
use meshd_agent::task::{
    shell::{guest_enter, shell_enter},
    task_enter,
};
use meshd_agent::vfio;
use meshd_agent::vm::confine::enter as vm_enter;
use meshd_types::{DenyList, Timestamp};
use std::{
    convert::Infallible, ffi::OsString, io::Write as _, path::PathBuf, process::ExitCode,
    time::SystemTime,
};
use tokio_util::sync::CancellationToken;

/// The build note. meshd reads it from the file and refuses programs without it (catalog/agent).
static BUILD_NOTE: &str = concat!(
    "mesh-agent build: version=",
    env!("CARGO_PKG_VERSION"),
    " commit=",
    env!("MESHD_COMMIT"),
    " time=",
    env!("MESHD_BUILD_TIME"),
    ";"
);

/// The agent of a meshd node: enrols with the central node, reports, runs VMs and tasks.
#[derive(Parser)]
#[command(name = "mesh-agent", version = meshd_agent::version())]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    paths: Paths,
}

#[derive(clap::Args)]
struct Paths {
    /// Public configuration, from the overlay
    #[arg(long, global = true, default_value = meshd_proto::AGENT_CONFIG_FILE, value_name = "FILE")]
    config: PathBuf,
    /// The part of this boot, from the overlay
    #[arg(long, global = true, default_value = meshd_proto::BOOT_FILE, value_name = "FILE")]
    boot_file: PathBuf,
    /// Key and certificate; keep it in tmpfs
    #[arg(long, global = true, default_value = "/run/meshd", value_name = "FOLDER")]
    state_dir: PathBuf,
    /// VMs and their volumes
    #[arg(long, global = true, default_value = meshd_agent::vm::FOLDER, value_name = "FOLDER")]
    vm_dir: PathBuf,
    /// Folders of tasks; keep it in tmpfs
    #[arg(
        long,
        global = true,
        hide = true,
        default_value = "/run/meshd-tasks",
        value_name = "FOLDER"
    )]
    tasks_dir: PathBuf,
    /// Folders of containers; keep it in tmpfs
    #[arg(
        long,
        global = true,
        hide = true,
        default_value = "/run/meshd-containers",
        value_name = "FOLDER"
    )]
    containers_dir: PathBuf,
    /// Root of the file system that facts and checks are read from
    #[arg(long, global = true, hide = true, default_value = "/")]
    root: PathBuf,
    /// Program that restarts the machine
    #[arg(long, global = true, hide = true, default_value = "/sbin/reboot")]
    reboot: PathBuf,
}

#[derive(Subcommand)]
enum Verb {
    /// Enrol, keep the link, run tasks
    Run {
        /// Ticket of `meshd token create` for a machine without netboot
        ///
        /// The file is removed when the ticket is stored. Use it with a --state-dir that outlives
        /// a reboot.
        #[arg(long, value_name = "FILE")]
        token_file: Option<PathBuf>,
    },
    /// Print the node ID of this machine, and its source
    Id,
    /// Print all facts of this machine, as JSON
    Facts,
    /// Run the readiness checks; exit code 1 if one fails
    Doctor {
        /// Output format
        #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
        output: ReportFormat,
        /// Short for -o lines
        #[arg(long, conflicts_with = "output")]
        lines: bool,
    },
    /// Devices for VMs
    #[command(subcommand)]
    Vfio(Vfio),
    /// Become a program of a task
    #[command(hide = true, name = task_enter::VERB)]
    TaskEnter {
        #[arg(long)]
        procs: PathBuf,
        #[arg(long)]
        uid: u32,
        #[arg(long)]
        dir: PathBuf,
        #[arg(long)]
        shm: PathBuf,
        #[arg(last = true, required = true)]
        argv: Vec<String>,
    },
    /// Become the shell of an administrator
    #[command(hide = true, name = shell_enter::VERB)]
    ShellEnter {
        #[arg(long)]
        procs: PathBuf,
    },
    /// Become the SSH client of an administrator
    #[command(hide = true, name = guest_enter::VERB)]
    GuestShellEnter {
        #[arg(long)]
        procs: PathBuf,
        #[arg(long)]
        uid: u32,
        #[arg(long)]
        passwd: PathBuf,
        #[arg(long)]
        folder: PathBuf,
        #[arg(last = true, required = true)]
        argv: Vec<OsString>,
    },
    /// Own one replica of a container
    #[command(hide = true, name = supervisor::VERB)]
    ContainerSupervise {
        #[arg(long)]
        folder: PathBuf,
    },
    /// Become the container runtime
    #[command(hide = true, name = container_runtime::VERB)]
    ContainerEnter {
        #[arg(long)]
        procs: PathBuf,
        #[arg(long)]
        hierarchy: PathBuf,
        #[arg(long)]
        terminal: bool,
        #[arg(last = true, required = true)]
        argv: Vec<OsString>,
    },
    /// Remove the kernel keys of a user
    #[command(hide = true, name = keyrings::VERB)]
    ClearKeys {
        #[arg(long)]
        uid: u32,
    },
    /// Start the loaded kernel, if there is one
    #[command(hide = true)]
    StartKernel,
    /// Become a program of a VM
    #[command(hide = true, name = vm_enter::VERB)]
    VmEnter {
        #[arg(long)]
        uid: u32,
        #[arg(long)]
        gid: u32,
        #[arg(long)]
        procs: Option<PathBuf>,
        #[arg(long)]
        pins: bool,
        #[arg(long)]
        folder: PathBuf,
        #[arg(long)]
        pass: Vec<OsString>,
        #[arg(last = true, required = true)]
        argv: Vec<String>,
    },
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum ReportFormat {
    /// For people
    #[default]
    Text,
    /// One MESH_CHECK line for each check
    Lines,
    /// For programs
    Json,
}

#[derive(Subcommand)]
enum Vfio {
    /// Give the profile's devices to vfio-pci, by IOMMU group; one line for each unit
    Bind,
}

fn main() -> ExitCode {
    // Without this use, the linker would drop the note.
    std::hint::black_box(BUILD_NOTE);
    meshd_agent::set_build(env!("MESHD_COMMIT"), env!("MESHD_BUILD_TIME"));
    let Cli { verb, paths } = Cli::parse();
    let ended = match verb {
        Verb::Run { token_file } => run(paths, token_file),
        Verb::Id => id(&paths),
        Verb::Facts => print_facts(&paths),
        Verb::Doctor { output, lines } => {
            doctor(&paths, if lines { ReportFormat::Lines } else { output })
        }
        Verb::Vfio(Vfio::Bind) => vfio_bind(&paths),
        Verb::TaskEnter { procs, uid, dir, shm, argv } => {
            task_enter(task_enter::TaskExec { procs, uid, dir, shm }, &argv)
        }
        Verb::ShellEnter { procs } => {
            Ok(cannot_run(shell_enter::enter(&procs), shell_enter::CANNOT_RUN))
        }
        Verb::GuestShellEnter { procs, uid, passwd, folder, argv } => {
            let exec = guest_enter::GuestShellExec { procs, uid, passwd, folder };
            guest_shell_enter(&exec, &argv)
        }
        Verb::ContainerSupervise { folder } => {
            supervisor::supervise(&folder).map(|()| ExitCode::SUCCESS).map_err(anyhow::Error::msg)
        }
        Verb::ContainerEnter { procs, hierarchy, terminal, argv } => {
            let entered = container_runtime::become_runtime(&procs, &hierarchy, terminal, &argv);
            Ok(cannot_run(entered, container_runtime::CANNOT_RUN))
        }
        Verb::ClearKeys { uid } => {
            keyrings::clear(uid).map(|()| ExitCode::SUCCESS).map_err(anyhow::Error::msg)
        }
        Verb::StartKernel => start_kernel(),
        Verb::VmEnter { uid, gid, procs, pins, folder, pass, argv } => {
            let entry = vm_enter::VmExec { uid, gid, procs, pins, folder, pass: Vec::new() };
            vm_enter(entry, &pass, &argv)
        }
    };
    ended.unwrap_or_else(|error| {
        print_error(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}

fn run(paths: Paths, token_file: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let filter =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_writer(|| meshd_types::LogLines(std::io::stderr()))
        .with_ansi(false)
        .with_env_filter(filter)
        .init();
    let Paths { config, boot_file, state_dir, vm_dir, tasks_dir, containers_dir, root, reboot } =
        paths;
    let reboot = vec![reboot.to_string_lossy().into_owned()];
    let options = link_driver::Options {
        config,
        boot_file,
        token_file,
        state_dir,
        root,
        reboot,
        vm_dir,
        tasks_dir,
        containers_dir,
    };
    // One thread is enough for one connection, and saves memory of the node.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let shutdown = CancellationToken::new();
        tokio::spawn(stop_on_signal(shutdown.clone()));
        link_driver::run(options, shutdown).await
    });
    // The next agent removes files that this one has not removed yet.
    runtime.shutdown_background();
    ended?;
    Ok(ExitCode::SUCCESS)
}

async fn stop_on_signal(shutdown: CancellationToken) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    shutdown.cancel();
    Ok(())
}

/// Starts the kernel of a warm boot. Without one, init goes on and resets the machine.
fn start_kernel() -> anyhow::Result<ExitCode> {
    meshd_agent::start_loaded_kernel()?;
    Ok(ExitCode::SUCCESS)
}

fn id(paths: &Paths) -> anyhow::Result<ExitCode> {
    let hardware = facts::hardware(&Tree::new(&paths.root));
    let basis = hardware.basis(&DenyList::new());
    let basis = basis.ok_or_else(|| {
        anyhow::anyhow!("this machine has neither UUID, serial number nor NIC; is /sys mounted?")
    })?;
    print(&format!("{}\n{basis}\n", basis.node_id()))?;
    Ok(ExitCode::SUCCESS)
}

fn print_facts(paths: &Paths) -> anyhow::Result<ExitCode> {
    // A machine without an overlay has facts too.
    let config = files::config(&paths.config).ok();
    let boot = config.as_ref().and_then(|config| files::boot(&paths.boot_file, config).ok());
    let facts = facts::collect(
        &Tree::new(&paths.root),
        &paths.vm_dir,
        config.as_ref(),
        boot.as_ref(),
        &Default::default(),
    );
    print(&(serde_json::to_string_pretty(&facts)? + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn doctor(paths: &Paths, output: ReportFormat) -> anyhow::Result<ExitCode> {
    let config = files::config(&paths.config)?;
    let boot = files::boot(&paths.boot_file, &config)?;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let now = Timestamp::from_millis(i64::try_from(since.as_millis())?);
    let tree = Tree::new(&paths.root);
    let clock = checks::CentralClock::load(&paths.state_dir);
    let ran = checks::report(&tree, &paths.vm_dir, &config, &boot, clock, now);
    let units = ran.resources.map(|resources| resources.units).unwrap_or_default();
    let report = meshd_proto::DoctorReport::new(now, ran.session, ran.checks, &units);
    print(&match output {
        ReportFormat::Text => report.text(),
        ReportFormat::Lines => report.lines(),
        ReportFormat::Json => serde_json::to_string_pretty(&report)? + "\n",
    })?;
    Ok(if report.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn vfio_bind(paths: &Paths) -> anyhow::Result<ExitCode> {
    let config = files::config(&paths.config)?;
    let tree = Tree::new(&paths.root);
    let bound = vfio::bind(&tree, &config.vfio, &vfio::LinuxKernel(&tree))?;
    for unit in &bound {
        print(&format!("{unit}\n"))?;
    }
    let usable = bound.iter().all(|bound| {
        matches!(bound.unit.state, meshd_proto::UnitState::Ready | meshd_proto::UnitState::InUse)
    });
    Ok(if usable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn vm_enter(
    entry: vm_enter::VmExec,
    pass: &[OsString],
    argv: &[String],
) -> anyhow::Result<ExitCode> {
    let (program, args) = program_of(argv)?;
    let pass: Result<Vec<_>, _> =
        pass.iter().map(|pass| vm_enter::PassedFile::parse(pass)).collect();
    let entered = pass.and_then(|pass| vm_enter::VmExec { pass, ..entry }.enter(program, args));
    Ok(cannot_run(entered, vm_enter::CANNOT_RUN))
}

fn task_enter(exec: task_enter::TaskExec, argv: &[String]) -> anyhow::Result<ExitCode> {
    let (program, args) = program_of(argv)?;
    Ok(cannot_run(task_enter::enter(&exec, program, args), task_enter::CANNOT_RUN))
}

fn guest_shell_enter(
    exec: &guest_enter::GuestShellExec,
    argv: &[OsString],
) -> anyhow::Result<ExitCode> {
    let (program, args) = argv.split_first().ok_or_else(|| anyhow::anyhow!("no program"))?;
    let entered = guest_enter::enter(exec, program.as_ref(), args);
    Ok(cannot_run(entered, guest_enter::CANNOT_RUN))
}

/// Writes to standard output. `println!` would panic if it is full or closed.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| anyhow::anyhow!("cannot write to standard output: {error}"))
}

/// Writes an error to standard error, if anybody reads it.
fn print_error(error: &str) {
    let _ = writeln!(std::io::stderr(), "mesh-agent: {error}");
}

fn program_of(argv: &[String]) -> anyhow::Result<(&String, &[String])> {
    argv.split_first().ok_or_else(|| anyhow::anyhow!("no program"))
}

/// Prints why a program was not executed. A successful execution does not return.
fn cannot_run(entered: Result<Infallible, String>, exit_code: u8) -> ExitCode {
    let Err(error) = entered;
    print_error(&error);
    ExitCode::from(exit_code)
}
