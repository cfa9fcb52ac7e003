//! Restarts the machine: through the firmware, or with the loaded kernel.
//!
//! A loaded kernel starts at a later shutdown too, so each cold restart unloads it. With OpenRC it
//! starts only beside a marker, which exists from the end of the load to the shutdown.

use super::{
    Completion,
    side_effects::{run_program, source},
};
use crate::{
    files,
    link::{call::Endpoint, warm_boot},
    link_state::Event,
    system::Tree,
};
use std::{
    future::pending,
    path::{Path, PathBuf},
};

/// The service `mesh-kexec` starts a loaded kernel only if this file of the state folder exists.
const MARKER: &str = "start-loaded-kernel";

pub(super) struct Restart {
    /// The program that restarts the machine.
    program: Vec<String>,
    marker: PathBuf,
    tree: Tree,
}

impl Restart {
    pub(super) fn new(program: Vec<String>, state_dir: &Path, tree: &Tree) -> Self {
        Restart { program, marker: state_dir.join(MARKER), tree: tree.clone() }
    }

    /// Removes the kernel that an earlier run has loaded: nobody ordered its start from this run.
    pub(super) async fn forget_kernel(&self) {
        if let Err(error) = files::remove_if_exists(&self.marker) {
            tracing::error!(%error, cause = source(&error), "cannot remove a marker");
        }
        warm_boot::unload(&self.tree).await;
    }

    /// Restarts through the firmware.
    pub(super) async fn cold(self) -> Completion {
        self.forget_kernel().await;
        match run(&self.program).await {
            Ok(()) => pending().await,
            Err(failure) => Completion::Event(Event::RebootFailed(failure)),
        }
    }

    /// Loads the next boot and starts it. If either fails, restarts through the firmware.
    pub(super) async fn warm(self, endpoint: Result<Endpoint, String>) -> Completion {
        let loaded = match endpoint {
            Ok(endpoint) => warm_boot::load(&endpoint, &self.tree).await,
            Err(error) => Err(error),
        };
        match loaded {
            Ok(()) => self.start_kernel().await,
            Err(reason) => {
                tracing::warn!(reason, "no warm boot; rebooting through the firmware");
                self.cold().await
            }
        }
    }

    async fn start_kernel(self) -> Completion {
        let marked = files::replace_unsynced(&self.marker, "");
        let started = match marked {
            Ok(()) => run(&self.warm_program()).await,
            Err(error) => Err(format!("{error}: {}", source(&error))),
        };
        let Err(reason) = started else { pending().await };
        tracing::warn!(reason, "the warm boot cannot start; rebooting through the firmware");
        self.cold().await
    }

    /// systemd has a command for a loaded kernel. With OpenRC, the service `mesh-kexec` starts it
    /// at the end of the shutdown.
    fn warm_program(&self) -> Vec<String> {
        if self.tree.path(warm_boot::SYSTEMD).exists() {
            return ["/usr/bin/systemctl", "kexec"].map(str::to_owned).into();
        }
        self.program.clone()
    }
}

/// Runs the program that restarts the machine. After success init stops this agent.
async fn run(arguments: &[String]) -> Result<(), String> {
    match run_program(arguments).await {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{arguments:?} exited with {status}")),
        Err(error) => Err(format!("cannot run {arguments:?}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;

    #[tokio::test]
    async fn warm_boot_that_cannot_start_is_cold_without_a_marker() {
        let fake = FakeMachine::new("", &[]);
        let dir = tempfile::tempdir().expect("a folder");
        let tried = dir.path().join("tried");
        // Fails, and lists the state folder of each try.
        let folder = dir.path().display();
        let script = format!("ls {folder} | grep -c start >> {}; exit 7", tried.display());
        let program = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
        let restart = Restart::new(program, dir.path(), &fake.tree);
        let ended = restart.start_kernel().await;
        let Completion::Event(Event::RebootFailed(failure)) = ended else { panic!("no failure") };
        assert!(failure.contains("exit status: 7"), "{failure}");
        let markers = std::fs::read_to_string(&tried).expect("both tries");
        assert_eq!(markers, "1\n0\n", "a marker for the warm restart only");
    }
}
