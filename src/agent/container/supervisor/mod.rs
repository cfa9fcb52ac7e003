//! `mesh-agent container-supervise`: the process that owns one replica from its start to the end of
//! its program. It outlives the agent, so that output is stored, published ports answer and the exit
//! code is recorded while no agent runs.
//!
//! | module | content |
//! | --- | --- |
//! | `launch` | what the agent tells the supervisor, and how it starts one |
//! | `root_file_system` | image, volumes, scratch space, in the supervisor's mount namespace |
//! | `program` | the program, started by the container runtime |
//! | `output_log` | the newest output of the program |
//! | `port_forward` | published ports |

mod launch;
mod output_log;
mod port_forward;
mod program;
mod root_file_system;

pub(super) use launch::{Launch, start};

use super::{
    replica_machine::ProgramEnd,
    replica_paths::{self, ReplicaPaths},
};
use crate::system::isolation;
use meshd_proto::container::ContainerFault;
use output_log::OutputLog;
use program::Program;
use rustix::process::setsid;
use std::{fmt, io::PipeReader, net::TcpListener, os::fd::OwnedFd, path::Path, time::Duration};
use tokio::{io::AsyncReadExt as _, net::unix::pipe::Receiver, time::timeout};

/// The hidden verb of mesh-agent.
pub const VERB: &str = "container-supervise";
/// Time in which the processes of a program end after they are killed.
const KILL_LIMIT: Duration = Duration::from_secs(30);
/// Time after the end of a program in which its last output is stored.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// Bytes of one read of the output.
const READ: usize = 64 * 1024;

/// Why a program does not start.
#[derive(Debug)]
struct LaunchError {
    kind: ContainerFault,
    detail: String,
}

impl LaunchError {
    fn new(kind: ContainerFault, detail: impl Into<String>) -> Self {
        LaunchError { kind, detail: detail.into() }
    }

    /// Returns a function that describes a failed step.
    fn of_step<E: fmt::Display>(step: &'static str) -> impl Fn(E) -> Self {
        move |error| LaunchError::new(ContainerFault::Prepare, format!("cannot {step}: {error}"))
    }
}

/// Runs the replica of a folder to the end of its program, and records the end. Must be called
/// before the process has threads.
///
/// # Errors
/// The end cannot be recorded.
pub fn supervise(folder: &Path) -> Result<(), String> {
    let paths = ReplicaPaths::of_folder(folder);
    let end = run(&paths)
        .unwrap_or_else(|LaunchError { kind, detail }| ProgramEnd::NotStarted { kind, detail });
    replica_paths::write(&paths.end(), &end)
        .map_err(|error| format!("cannot write {}: {error}", paths.end().display()))
}

fn run(paths: &ReplicaPaths) -> Result<ProgramEnd, LaunchError> {
    let launch: Launch = replica_paths::read(&paths.launch())
        .ok_or_else(|| LaunchError::new(ContainerFault::Prepare, "cannot read launch.json"))?;
    // A signal to the processes of the agent must not reach this one.
    setsid().map_err(LaunchError::of_step("create a session"))?;
    launch
        .cgroup
        .enter_supervisor()
        .map_err(|error| LaunchError::new(ContainerFault::CgroupMissing, error.to_string()))?;
    let listeners = port_forward::listen(&launch.spec.ports)?;
    isolation::enter().map_err(|error| LaunchError::new(ContainerFault::Prepare, error))?;
    root_file_system::mount_all(paths, &launch)?;
    let log = OutputLog::open(&paths.log()).map_err(LaunchError::of_step("open the log"))?;
    let (output, writer) = std::io::pipe().map_err(LaunchError::of_step("create a pipe"))?;
    let started = program::start(paths, &launch, writer)
        .and_then(|program| serve(&program, &launch, output, log, listeners));
    let out_of_memory = launch.cgroup.is_out_of_memory();
    if !launch.cgroup.end_program(KILL_LIMIT) {
        tracing::error!(replica = %launch.replica, "a killed process of a container does not end");
    }
    // Its mounts end with this process.
    program::forget(&launch);
    started.map(|code| ProgramEnd::Exited { code, out_of_memory })
}

/// Stores the output of a program and forwards its ports until it ends. Returns its exit code.
fn serve(
    program: &Program,
    launch: &Launch,
    output: PipeReader,
    log: OutputLog,
    listeners: Vec<(TcpListener, u16)>,
) -> Result<u8, LaunchError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(LaunchError::of_step("start threads"))?;
    let ended = runtime.block_on(async {
        let output = Receiver::from_owned_fd(OwnedFd::from(output))
            .map_err(LaunchError::of_step("read the output"))?;
        let copying = tokio::spawn(copy(output, log));
        let forwarding = port_forward::forward(listeners, program.network())
            .map_err(LaunchError::of_step("publish ports"))?;
        let code = program.wait().await;
        launch.cgroup.kill_program();
        // Clients and the log get what the program wrote before its end.
        let _ = tokio::join!(forwarding.end(), timeout(LAST_OUTPUT, copying));
        Ok(code)
    });
    runtime.shutdown_background();
    ended
}

/// Stores output until no process has its pipe.
async fn copy(mut output: Receiver, mut log: OutputLog) {
    let mut buffer = vec![0; READ];
    while let Ok(length @ 1..) = output.read(&mut buffer).await {
        // Without space the output is lost; the program goes on.
        let _ = log.append(&buffer[..length]);
    }
}
