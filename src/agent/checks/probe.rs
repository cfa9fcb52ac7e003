//! Probes that need the running system: sockets, devices, programs. Tests replace them.

use crate::{
    networks::{
        self,
        firewall::user::{self, CentralServices},
    },
    system::Tree,
    vm::{self, Space},
};
use meshd_proto::NetworkSpec;
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// Timeout of a neighbour: the kernel sends three ARP requests, a second apart.
const ARP_TIMEOUT: Duration = Duration::from_secs(4);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Port `discard`: no service answers, but sending to it makes the kernel resolve the neighbour.
const DISCARD: u16 = 9;

pub trait Probe: Send + Sync {
    /// Returns whether a neighbour answers; `None` if that cannot be tested.
    fn neighbour_answers(&self, neighbour: Ipv4Addr) -> Option<bool>;

    /// Returns the file system of a folder, or of its nearest existing parent.
    fn space(&self, folder: &Path) -> Option<Space>;

    /// Returns the node's address in the private network of VMs, or the part that fails; `None` if
    /// that cannot be tested.
    fn private_network(
        &self,
        spec: &NetworkSpec,
        central: SocketAddrV4,
    ) -> Option<Result<Ipv4Addr, String>>;

    /// Returns the properties of units as `systemctl show` prints them; `None` if that cannot be
    /// tested. Blocks for at most the timeout of systemctl, 25 s.
    fn unit_properties(&self, properties: &str, units: &[&str]) -> Option<io::Result<String>>;

    /// Returns the names of firewalls that are missing or changed; `None` if that cannot be tested.
    fn user_firewalls(&self, central: CentralServices) -> Option<io::Result<Vec<&'static str>>>;
}

/// Probes of the machine whose root is the tree.
pub struct SystemProbe(pub Tree);

impl Probe for SystemProbe {
    #[expect(
        clippy::disallowed_methods,
        reason = "the kernel does not notify of changes of its neighbour table"
    )]
    fn neighbour_answers(&self, neighbour: Ipv4Addr) -> Option<bool> {
        if !self.0.is_running_system() {
            return None;
        }
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
            .ok()?
            .send_to(&[], (neighbour, DISCARD))
            .ok()?;
        let deadline = Instant::now() + ARP_TIMEOUT;
        while Instant::now() < deadline {
            if is_resolved(&self.0.read("/proc/net/arp").unwrap_or_default(), neighbour) {
                return Some(true);
            }
            sleep(POLL_INTERVAL);
        }
        Some(false)
    }

    fn space(&self, folder: &Path) -> Option<Space> {
        vm::space(folder).ok()
    }

    fn private_network(
        &self,
        spec: &NetworkSpec,
        central: SocketAddrV4,
    ) -> Option<Result<Ipv4Addr, String>> {
        self.0.is_running_system().then(|| networks::check(&self.0, spec, central))
    }

    fn unit_properties(&self, properties: &str, units: &[&str]) -> Option<io::Result<String>> {
        self.0.is_running_system().then(|| {
            let mut command = Command::new("systemctl");
            command.args(["show", "--property", properties, "--"]).args(units);
            let output = command.stdin(Stdio::null()).output()?;
            if !output.status.success() {
                return Err(io::Error::other(format!("systemctl: {}", output.status)));
            }
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        })
    }

    fn user_firewalls(&self, central: CentralServices) -> Option<io::Result<Vec<&'static str>>> {
        self.0.is_running_system().then(|| user::missing(central))
    }
}

/// `10.77.0.1 0x1 0x2 52:54:00:12:34:56 * eth0`: flag 2 means that the address is resolved. A
/// neighbour that stops answering loses the flag after a few seconds of requests, so the next run
/// detects the failure.
fn is_resolved(table: &str, neighbour: Ipv4Addr) -> bool {
    table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let flags = fields
            .get(2)
            .and_then(|flags| u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok());
        fields.first().and_then(|address| address.parse().ok()) == Some(neighbour)
            && flags.is_some_and(|flags| flags & 2 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbour_answers_when_its_address_is_resolved() {
        let table = "IP address HW type Flags HW address Mask Device\n\
            10.77.0.1  0x1  0x2  52:54:00:12:34:56  *  eth0\n10.77.0.2  0x1  0x0  00:00:00:00:00:00  *  eth0\n";
        let known = |text: &str| is_resolved(table, text.parse().expect("an address"));
        assert_eq!(
            (known("10.77.0.1"), known("10.77.0.2"), known("10.77.0.3")),
            (true, false, false)
        );
    }

    #[test]
    fn free_space_is_that_of_nearest_existing_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        let probe = SystemProbe(Tree::new(dir.path()));
        let space = probe.space(&dir.path().join("not/yet/there"));
        assert!(space.is_some_and(|space| space.free > 0));
        assert_eq!(
            probe.neighbour_answers(Ipv4Addr::LOCALHOST),
            None,
            "a fake root has no network"
        );
    }
}
