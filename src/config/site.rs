//! The validated site, as [`super::load`] returns it.

use super::{Group, Profile, Vms};
use meshd_types::{DenyList, Link, MacAddr, NodeId, Owner, ProfileName, RuleName, Segment, SystemUuid, VarName};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    path::PathBuf,
    time::Duration,
};

/// One site, checked: every reference resolves, every bound holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// `[site].name`.
    pub name: String,
    /// The file that it was read from.
    pub file: PathBuf,
    /// Store, CA, keys.
    pub state_dir: PathBuf,
    /// Built images by digest.
    pub blobs_dir: PathBuf,
    /// Image recipes.
    pub images_dir: PathBuf,
    pub overlays_dir: PathBuf,
    /// Public keys that may log in to nodes as root; none by default.
    pub ssh_keys: Vec<String>,
    /// `[net]` + `[dhcp]`, if they are written, then each `[[segment]]`. At least one has an interface; links differ, and so
    /// do networks.
    pub segments: Vec<Segment>,
    /// Addresses that are kept for one machine each; no address twice.
    pub reservations: Vec<Reservation>,
    /// Names that machines receive as nodes; no name twice.
    pub node_names: BTreeMap<Owner, String>,
    /// What holds for virtual machines, and what is set aside for their cards.
    pub vms: Vms,
    /// Boot plane over HTTP.
    pub http: Http,
    /// Agent plane.
    pub agent: AgentPlane,
    /// Admin plane.
    pub admin: Admin,
    /// What meshd runs as.
    pub process: Process,
    /// Where Prometheus may ask beside the admin socket; `None` without `[metrics]`.
    pub metrics: Option<MetricsListener>,
    /// Who gets a certificate.
    pub enroll: Enroll,
    /// What does not tell machines apart.
    pub identity: Identity,
    /// How machines are booted.
    pub boot: Boot,
    /// What an unknown node boots.
    pub default_profile: ProfileName,
    /// All profiles, with `extends` resolved. Contains `default_profile`.
    pub profiles: BTreeMap<ProfileName, Profile>,
    /// All groups, in the order of the file.
    pub groups: Vec<Group>,
    /// Where the secrets of overlays lie, by the name of the variable. What they are is read into the catalog.
    pub secrets: BTreeMap<VarName, PathBuf>,
}

/// What an address is on the network of a segment, where no client may have it: the address of meshd, of a relay, router or server.
pub fn role_on(segment: &Segment, address: Ipv4Addr) -> Option<&'static str> {
    let is = |own: Option<Ipv4Addr>| own == Some(address);
    match &segment.link {
        Link::Relay(relay) if *relay == address => return Some("the relay"),
        _ if is(segment.address) => return Some("meshd's own, on the network"),
        _ => {}
    }
    let pool = segment.pool.as_ref()?;
    match address {
        _ if is(pool.router) => Some("the router"),
        _ if pool.dns.contains(&address) || pool.ntp.contains(&address) => Some("a name or time server"),
        _ if [pool.network(), pool.broadcast()].contains(&address) => Some("the network or broadcast address"),
        _ => None,
    }
}

/// The address of a `[[reservation]]`: only its owner gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub owner: Owner,
    /// An address of the network of a segment with a range, inside of the range or outside of it.
    pub address: Ipv4Addr,
}

/// `[http]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// TCP port of scripts, blobs and overlays.
    pub port: u16,
}

/// `[agent]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPlane {
    /// TCP port.
    pub port: u16,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// Silence after which a node is offline.
    pub offline_after: Duration,
    /// Whether tasks may run as root of their nodes, which takes the role admin. Default: they may.
    pub root_tasks: bool,
    /// The agent that nodes receive; `None` means `mesh-agent` beside this program.
    pub binary: Option<PathBuf>,
}

/// `[admin]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Unix socket of the CLI.
    pub socket: PathBuf,
    /// `[admin.https]`: the way in for those with a token; `None` without the section.
    pub https: Option<AdminHttps>,
}

/// `[admin.https]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminHttps {
    /// Address of this machine.
    pub address: Ipv4Addr,
    /// TCP port; 8444 by default.
    pub port: u16,
    /// Certificate and key, PEM; meshd makes its own without them.
    pub files: Option<(PathBuf, PathBuf)>,
    /// It may be reached from networks on which machines boot.
    pub boot_network: bool,
}

/// `[process]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// What meshd goes on as once every port is open; `None` means as it was started.
    pub user: Option<String>,
}

/// `[metrics]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsListener {
    /// Address of this machine; 127.0.0.1 by default.
    pub address: Ipv4Addr,
    /// TCP port; 9109 by default.
    pub port: u16,
}

/// `[enroll]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enroll {
    /// Who is let in.
    pub policy: EnrollPolicy,
    /// Life of a boot token.
    pub token_ttl: Duration,
    /// Machines that need no operator, in the order of the file.
    pub rules: Vec<EnrollRule>,
}

/// One `[[enroll.rule]]`: a machine that fits is let in as soon as it is discovered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnrollRule {
    /// Its name in events and in the audit log.
    pub name: RuleName,
    /// What it asks for.
    pub facts: Facts,
    /// The profile that it gives to whom it lets in, unless one was assigned.
    pub profile: Option<ProfileName>,
}

/// What a rule asks for. All that is written has to fit, of a list any one; at least one of them is written. Texts are trimmed and in
/// lower case, and so is what they are compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// System serial numbers; none that firmware leaves when nobody gave one.
    pub serials: BTreeSet<String>,
    /// System UUIDs.
    pub uuids: BTreeSet<SystemUuid>,
    /// Node IDs.
    pub nodes: BTreeSet<NodeId>,
    /// SMBIOS manufacturer.
    pub manufacturer: Option<String>,
    /// SMBIOS product.
    pub product: Option<String>,
    /// How the MAC address of the boot NIC begins.
    pub mac_prefixes: BTreeSet<MacPrefix>,
    /// Where it boots: [`Segment::name`].
    pub segments: BTreeSet<String>,
}

/// How a MAC address begins: one to six whole octets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MacPrefix(pub(super) Vec<u8>);

impl MacPrefix {
    /// True if the address begins so.
    pub fn fits(&self, mac: MacAddr) -> bool {
        mac.0.starts_with(&self.0)
    }
}

impl std::str::FromStr for MacPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let octet = |part: &str| {
            let hex = part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            hex.then(|| u8::from_str_radix(part, 16).ok()).flatten()
        };
        let trimmed = text.trim_end_matches([':', '-']);
        let octets: Option<Vec<u8>> = trimmed.split([':', '-']).map(octet).collect();
        octets.filter(|octets| octets.len() <= 6).map(MacPrefix).ok_or_else(|| {
            let shown = super::reader::brief(text);
            format!("`{shown}` is not how a MAC address begins; write whole octets: \"52:54:00\"")
        })
    }
}

/// `[identity]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// UUIDs that more than one machine has, beside the placeholders known to everyone.
    pub deny: DenyList,
}

/// Who is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnrollPolicy {
    /// An operator approves each new node.
    Approve,
    /// Every node that boots; for labs.
    Auto,
}

/// `[boot]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// How kernel and initrds travel.
    pub kernel_transport: Transport,
    /// How the overlay travels.
    pub delivery: Delivery,
    /// Folder of `undionly.kpxe`, `snponly.efi`, `ipxe.efi`; Debian's package `ipxe` puts them in /usr/lib/ipxe.
    pub loaders_dir: PathBuf,
    /// Kernel consoles, the last one is /dev/console, such as `ttyS0,115200`.
    pub consoles: Vec<String>,
    /// Boots that load kernel, initrds and overlay at once; more wait in line, in iPXE.
    pub max_loading: usize,
}

/// How kernel and initrds travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// HTTP, the default.
    Http,
    /// TFTP, for networks that let nothing else through before the operating system runs.
    Tftp,
}

/// How the overlay travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// As one more initrd: the node never sees its URL.
    Initrd,
    /// By `apkovl=URL`, for loaders that cannot add an initrd.
    Url,
}
