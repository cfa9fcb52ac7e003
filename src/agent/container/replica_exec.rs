//! A program that a user runs in a replica, in a terminal. It has the rights and the limits of the
//! replica.

use super::{
    bundle, health_probe::ProbedReplica, replica_cgroup::ExecCgroup, replica_paths, runtime,
};
use crate::vm::LoginFault;
use meshd_proto::{container::ExecOrder, task::check_argv};
use meshd_types::Hint as _;
use std::{fs, io, path::PathBuf, process::Command};

/// A program that is ready to start. Dropping it ends all its processes.
#[derive(Debug)]
pub struct ReplicaExec {
    group: ExecCgroup,
    /// Description of the program.
    process: PathBuf,
    command: Command,
}

impl ReplicaExec {
    /// Prepares the program of an order.
    pub(super) fn prepare(replica: &ProbedReplica, order: &ExecOrder) -> Result<Self, LoginFault> {
        let failed = |error: io::Error| {
            LoginFault::new(format!("cannot prepare the program: {error}"), "see `meshd node logs`")
        };
        check_argv(&order.argv)
            .map_err(|error| LoginFault::new(error.message(), error.hint().unwrap_or_default()))?;
        if replica.cgroup.program_of(&replica.paths.pid()).is_none() {
            return Err(LoginFault::new(
                format!("{} does not run", order.replica),
                "see `meshd container show`",
            ));
        }
        let ExecOrder { argv, shell, .. } = order;
        let process = replica.paths.exec_process(shell.console.0);
        let content = bundle::process(&replica.spec, argv, Some(shell.terminal.as_str()));
        replica_paths::write(&process, &content).map_err(failed)?;
        let name = format!("exec-{:016x}", shell.console.0);
        let group = replica.cgroup.make_exec_group(&name).map_err(failed)?;
        let mut command = runtime::enter(&group.procs(), &replica.hierarchy, true);
        command.args(replica.runtime.exec(&order.replica, &process));
        Ok(ReplicaExec { group, process, command })
    }

    /// Returns the command, which takes the terminal that is its input.
    pub fn take_command(&mut self) -> Command {
        std::mem::replace(&mut self.command, Command::new(runtime::VERB))
    }
}

impl Drop for ReplicaExec {
    fn drop(&mut self) {
        self.group.end();
        let _ = fs::remove_file(&self.process);
    }
}
