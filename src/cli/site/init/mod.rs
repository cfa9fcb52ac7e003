//! `meshd init`: reads the network configuration of this machine and writes an initial site.toml.
//!
//! | module | content |
//! | --- | --- |
//! | `range` | proposes the addresses that machines may lease |
//! | `write` | the annotated sample with the values of this machine |

mod range;
mod write;

use crate::cli::{Context, Failure, output::writer::write_message, path_text};
use clap::{Args, ValueEnum};
use meshd_config::InterfaceNetwork;
use meshd_serve::{
    bind::{self, BindError, Service},
    dhcp,
};
use std::{
    collections::BTreeSet,
    io::{self, IsTerminal as _},
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
    time::Duration,
};

/// Folder of the installed package.
const SHARE: &str = "/usr/share/meshd";
const SYSTEM_SITE: &str = "/etc/meshd/site.toml";
/// Time limit of the search for other DHCP servers. dnsmasq pings an address for three seconds
/// before it offers the address.
const SEARCH: Duration = Duration::from_secs(5);
/// Name prefixes of interfaces that containers and hypervisors create. Only `--interface` selects
/// them.
const VIRTUAL: [&str; 5] = ["lo", "docker", "veth", "virbr", "cni"];

/// Such as `meshd init --interface br0 --range 10.77.0.100-10.77.0.200`.
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Interface of the boot network
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Addresses for machines
    #[arg(long, value_name = "FIRST-LAST")]
    range: Option<String>,
    /// DHCP mode [default: proxy beside another DHCP server]
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Name of the site
    #[arg(long, default_value = "rack-a")]
    name: String,
    /// Replace an existing site file
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Authoritative,
    Proxy,
    Off,
}

impl Mode {
    fn word(self) -> &'static str {
        match self {
            Mode::Authoritative => "authoritative",
            Mode::Proxy => "proxy",
            Mode::Off => "off",
        }
    }
}

impl Init {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let file = context.site.clone().unwrap_or_else(default_file);
        if file.exists() && !self.force {
            let message = format!("cannot write {}: the file exists", path_text(&file));
            return Err(Failure::new(
                message,
                "use --force to replace it, or name another file with --site",
            ));
        }
        let network = choose(meshd_config::interface_networks(), self.interface.as_deref())?;
        message!("interface {}: {}/{}", network.interface, network.address, network.prefix_len);
        let servers = other_servers(&network);
        let mode =
            self.mode.unwrap_or(if servers.is_empty() { Mode::Authoritative } else { Mode::Proxy });
        message!("DHCP mode: {}", mode.word());
        let range = match self.range {
            Some(range) => range,
            None => propose_range(&network)?,
        };
        let share = Path::new(SHARE);
        let values = write::Values {
            name: self.name,
            interface: network.interface.clone(),
            address: network.address,
            mode: mode.word(),
            range,
            netmask: netmask(network.prefix_len),
            share: share.is_dir().then(|| share.to_owned()),
        };
        write::write(&file, &values)?;
        report_ports(&network, mode);
        message!("{} is written", path_text(&file));
        if values.share.is_none() {
            report_missing_folders(&file);
        }
        message!(
            "next: meshd check --site {0}; then meshd image build --site {0}; then start meshd",
            path_text(&file)
        );
        Ok(())
    }
}

fn netmask(prefix_len: u8) -> Ipv4Addr {
    Ipv4Addr::from(u32::MAX.checked_shl(32_u32.saturating_sub(prefix_len.into())).unwrap_or(0))
}

/// Names the folders that the site needs and that are not beside its file.
fn report_missing_folders(file: &Path) {
    let folder =
        file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let missing: Vec<&str> =
        ["overlays", "images"].into_iter().filter(|name| !folder.join(name).is_dir()).collect();
    if !missing.is_empty() {
        message!(
            "copy {} from meshd's source or from {SHARE} of a host with the package to {}",
            missing.join(" and "),
            path_text(folder)
        );
    }
}

/// Returns the system site file for root on a machine with the package, else a file in the current
/// folder.
fn default_file() -> PathBuf {
    let system = Path::new(SYSTEM_SITE);
    let is_installed =
        system.parent().is_some_and(Path::is_dir) && rustix::process::geteuid().is_root();
    if is_installed { system.to_owned() } else { PathBuf::from("site.toml") }
}

/// Returns the network of the named interface, else the only candidate, else the choice of the
/// user.
fn choose(
    networks: Vec<InterfaceNetwork>,
    named: Option<&str>,
) -> Result<InterfaceNetwork, Failure> {
    let is_candidate = |network: &&InterfaceNetwork| match named {
        Some(name) => network.interface == name,
        None => !VIRTUAL.iter().any(|prefix| network.interface.starts_with(prefix)),
    };
    let candidates: Vec<&InterfaceNetwork> = networks.iter().filter(is_candidate).collect();
    let list = |networks: &[&InterfaceNetwork]| {
        let each = networks
            .iter()
            .map(|it| format!("{} ({}/{})", it.interface, it.address, it.prefix_len));
        each.collect::<Vec<_>>().join(", ")
    };
    match (candidates.as_slice(), named) {
        ([], Some(name)) => Err(Failure::new(
            format!("cannot use interface {name}: it does not exist or has no IPv4 address"),
            format!("interfaces with an address: {}", list(&networks.iter().collect::<Vec<_>>())),
        )),
        ([], None) => Err(Failure::new(
            "cannot choose an interface: none has an IPv4 address",
            "give the boot network's interface an address, such as `ip address add 10.77.0.1/24 dev eth1`",
        )),
        ([first, ..], Some(_)) | ([first], None) => Ok((*first).clone()),
        (several, None) if io::stdin().is_terminal() && io::stderr().is_terminal() => {
            ask_interface(several, &list(several)).cloned()
        }
        (several, None) => Err(Failure::new(
            format!("cannot choose an interface: there are {}", list(several)),
            "name the boot network's with --interface NAME",
        )),
    }
}

fn ask_interface<'a>(
    candidates: &[&'a InterfaceNetwork],
    list: &str,
) -> Result<&'a InterfaceNetwork, Failure> {
    write_message(&format!("interface of the boot network: {list}\nname: "));
    let mut answer = String::new();
    let _ = io::stdin().read_line(&mut answer);
    let found = candidates.iter().find(|network| network.interface == answer.trim());
    found.copied().ok_or_else(|| {
        Failure::new(
            format!("unknown interface `{}`", answer.trim()),
            format!("use one of: {list}"),
        )
    })
}

/// Searches for DHCP servers on the network. If the user lacks the permission, prints a note and
/// returns none.
fn other_servers(network: &InterfaceNetwork) -> BTreeSet<Ipv4Addr> {
    message!("looking for other DHCP servers on {} ...", network.interface);
    let xid = u32::from(network.address) ^ std::process::id();
    match dhcp::find_servers(&network.interface, network.address, xid, SEARCH) {
        Ok(servers) => {
            for server in &servers {
                message!("another DHCP server answers: {server}");
            }
            if servers.is_empty() {
                message!("no other DHCP server answers");
            }
            servers
        }
        Err(error) => {
            message!("note: cannot look for other DHCP servers: {error}");
            BTreeSet::new()
        }
    }
}

fn propose_range(network: &InterfaceNetwork) -> Result<String, Failure> {
    let found = range::propose(network.address, network.prefix_len)
        .map(|(first, last)| format!("{first}-{last}"));
    found.ok_or_else(|| {
        let message = format!(
            "cannot propose addresses: network {}/{} is too small",
            network.address, network.prefix_len
        );
        Failure::new(message, "name them with --range FIRST-LAST")
    })
}

/// Reports ports of meshd that another program uses. The ports do not affect `meshd init`, but
/// `meshd serve` would fail.
fn report_ports(network: &InterfaceNetwork, mode: Mode) {
    let mut udp = vec![(Service::Tftp, 69)];
    if mode != Mode::Off {
        udp.push((Service::Dhcp, 67));
    }
    let interface = Some(network.interface.as_str());
    let at = |port| SocketAddrV4::new(network.address, port);
    let taken =
        udp.into_iter().filter_map(|(service, port)| bind::udp(service, interface, at(port)).err());
    let tcp = [(Service::Http, 8080), (Service::Agent, 8443)];
    let tcp = tcp
        .into_iter()
        .filter_map(|(service, port)| bind::is_free(service, interface, at(port)).err());
    for error in taken.chain(tcp).filter(|error| matches!(error, BindError::Taken { .. })) {
        message!("warning: {error}");
    }
}
