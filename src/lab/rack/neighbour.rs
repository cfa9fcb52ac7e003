//! Other machines on the rack's network: a stranger, another DHCP server, a relay.

use crate::{LabError, Namespace, ProcessId, Rack, network::bridge, site};
use std::{
    fs::File,
    net::Ipv4Addr,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// How long a program may take to end when its machine is unplugged.
const GRACE: Duration = Duration::from_secs(5);

/// A machine with an address of its own on the rack's network; unplugged when dropped, with everything that runs on it.
pub struct Neighbour {
    namespace: Namespace,
    programs: Vec<Child>,
}

impl Rack {
    /// Plugs a machine into the rack's network. Its name is at most ten letters long and used once.
    pub fn neighbour(&self, name: &str, address: Ipv4Addr) -> Result<Neighbour, LabError> {
        let neighbour = Neighbour { namespace: self.namespace.beside(name), programs: Vec::new() };
        neighbour.namespace.create()?;
        let port = format!("{name}0");
        bridge::add_machine(&self.namespace, &port, &neighbour.namespace, address, site::prefix_len(&self.site))?;
        Ok(neighbour)
    }
}

impl Neighbour {
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Runs `work` on that machine: sockets that it opens have its address.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        self.namespace.inside(work)
    }

    /// Starts a program there, which must stay in the foreground; what it says goes into a file. That the command line names the
    /// rack's folder lets `lab down` find it after a crash.
    pub fn start(&mut self, command: &mut Command, log: &Path) -> Result<(), LabError> {
        let out = File::create(log).map_err(LabError::file("write", log))?;
        let err = out.try_clone().map_err(LabError::file("write", log))?;
        self.programs.push(self.namespace.spawn(command.stdin(Stdio::null()).stdout(out).stderr(err))?);
        Ok(())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        for mut program in self.programs.drain(..) {
            // Whatever stays is found again by the end of the rack.
            let _ = ProcessId::of(program.id()).map(|process| process.end("a neighbour's program", GRACE));
            let _ = program.wait();
        }
        let _ = self.namespace.delete();
    }
}
