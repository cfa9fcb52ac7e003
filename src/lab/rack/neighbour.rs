//! Other machines on the rack's network: an unknown machine, another DHCP server, a relay.

use crate::{LabError, Namespace, ProcessId, Rack, network::bridge, site};
use std::{
    fs::File,
    net::Ipv4Addr,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Longest time that a program may take to end when its machine is removed.
const GRACE: Duration = Duration::from_secs(5);

/// A machine on the rack's network that is not a node. Dropping the value removes the machine with
/// all its programs.
pub struct Neighbour {
    namespace: Namespace,
    programs: Vec<Child>,
}

impl Rack {
    /// Adds a machine to the rack's network. The name must be unique and have at most ten letters.
    pub fn neighbour(&self, name: &str, address: Ipv4Addr) -> Result<Neighbour, LabError> {
        let neighbour = Neighbour { namespace: self.namespace.derived(name), programs: Vec::new() };
        neighbour.namespace.create()?;
        let port = format!("{name}0");
        bridge::add_machine(
            &self.namespace,
            &port,
            &neighbour.namespace,
            address,
            site::prefix_len(&self.site),
        )?;
        Ok(neighbour)
    }
}

impl Neighbour {
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Runs `work` on the machine, so that its sockets have the machine's address.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.namespace.inside(work)
    }

    /// Starts a foreground program on the machine and writes its output to a file. The command line
    /// must contain the rack's folder, by which `lab down` finds the program after a crash.
    pub fn start(&mut self, command: &mut Command, log: &Path) -> Result<(), LabError> {
        let out = File::create(log).map_err(LabError::file("write", log))?;
        let err = out.try_clone().map_err(LabError::file("write", log))?;
        self.programs
            .push(self.namespace.spawn(command.stdin(Stdio::null()).stdout(out).stderr(err))?);
        Ok(())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        for mut program in self.programs.drain(..) {
            // Ignore errors: `lab down` removes remaining processes.
            let _ = ProcessId::of(program.id())
                .map(|process| process.end("a neighbour's program", GRACE));
            let _ = program.wait();
        }
        let _ = self.namespace.delete();
    }
}
