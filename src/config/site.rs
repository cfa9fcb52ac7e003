//! The validated site, as [`super::load`] returns it.

use super::{Group, MacPrefix, NamePattern, Profile, SecretSource, Vms};
use meshd_types::{
    BmcDriver, DenyList, Digest, Hostlist, LabelKey, LabelValue, Link, MacAddr, NodeId, Owner,
    PowerLadder, ProfileName, ProgramName, RelayIdPattern, RuleName, Segment, SystemUuid, VarName,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
    path::PathBuf,
    time::Duration,
};

/// A validated site: every reference resolves, every value is within its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// `[site].name`.
    pub name: String,
    pub file: PathBuf,
    /// Folder of store, certificate authority and keys.
    pub state_dir: PathBuf,
    /// Built images by digest.
    pub blobs_dir: PathBuf,
    /// Image recipes.
    pub images_dir: PathBuf,
    pub overlays_dir: PathBuf,
    /// SSH keys with root access to nodes; none by default.
    pub ssh_keys: Vec<String>,
    /// `[net]` with `[dhcp]`, then each `[[segment]]`. At least one segment has an interface. Links
    /// and networks are unique.
    pub segments: Vec<Segment>,
    /// The addresses that the interfaces of this machine had when the file was read.
    pub own_addresses: Vec<Ipv4Addr>,
    /// Address reservations; addresses are unique.
    pub reservations: Vec<Reservation>,
    /// Reserved node names; names are unique.
    pub node_names: BTreeMap<Owner, String>,
    /// `[vms]`: settings of VMs, and the address pools for their NICs.
    pub vms: Vms,
    pub http: Http,
    pub agent: AgentSettings,
    pub admin: Admin,
    pub process: Process,
    /// Listener for Prometheus, in addition to the admin socket.
    pub metrics: Option<MetricsListener>,
    pub enroll: Enroll,
    pub identity: Identity,
    pub boot: Boot,
    /// Profile of a node that has no assigned profile.
    pub default_profile: ProfileName,
    /// All profiles, with `extends` resolved. Contains `default_profile`.
    pub profiles: BTreeMap<ProfileName, Profile>,
    /// All groups, in the order of the file.
    pub groups: Vec<Group>,
    /// Access to the BMCs of machines.
    pub power: Power,
    /// Programs of the site by name.
    pub programs: BTreeMap<ProgramName, SiteProgram>,
    /// Secrets by variable name.
    pub secrets: BTreeMap<VarName, SecretSource>,
}

impl Site {
    /// Returns the segment from which a machine with this address boots: the only segment, or the
    /// one whose network has the address.
    pub fn segment_at(&self, address: Option<IpAddr>) -> Option<&Segment> {
        if let [only] = self.segments.as_slice() {
            return Some(only);
        }
        let Some(IpAddr::V4(address)) = address else { return None };
        self.segments.iter().find(|segment| {
            segment.subnet.as_ref().is_some_and(|subnet| subnet.is_on_network(address))
        })
    }
}

/// Returns the role of an address that clients of a segment must not use: meshd, relay, router or
/// server.
pub fn role_on(segment: &Segment, address: Ipv4Addr) -> Option<&'static str> {
    match &segment.link {
        Link::Relay(relay) if *relay == address => return Some("the relay"),
        _ if segment.address == Some(address) => return Some("meshd's own, on the network"),
        _ => {}
    }
    let subnet = segment.subnet.as_ref()?;
    match address {
        _ if subnet.router == Some(address) => Some("the router"),
        _ if subnet.dns.contains(&address) || subnet.ntp.contains(&address) => {
            Some("a name or time server")
        }
        _ if [subnet.network(), subnet.broadcast()].contains(&address) => {
            Some("the network or broadcast address")
        }
        _ => None,
    }
}

/// The address of a `[[reservation]]`, which only its owner receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub owner: Owner,
    /// Address in the subnet of a segment, inside or outside its pool.
    pub address: Ipv4Addr,
    /// The NIC that sends the frames of this one: its parent, if it is a virtual interface of a
    /// node.
    pub parent: Option<MacAddr>,
}

/// `[http]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// TCP port of scripts, blobs and overlays.
    pub port: u16,
}

/// `[agent]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSettings {
    /// TCP port.
    pub port: u16,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// Silence after which a node is offline.
    pub offline_after: Duration,
    /// Permits tasks as root, which require the role admin. Default: true.
    pub root_tasks: bool,
    /// Permits shells of guests, which require the role admin. Default: true.
    pub guest_shells: bool,
    /// Agent binary for nodes; `None` means `mesh-agent` in the folder of this program.
    pub binary: Option<PathBuf>,
}

/// `[admin]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Unix socket of the CLI.
    pub socket: PathBuf,
    /// `[admin.https]`, for clients with an API token.
    pub https: Option<AdminHttps>,
}

/// `[admin.https]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminHttps {
    /// Address of this machine.
    pub address: Ipv4Addr,
    /// TCP port; 8444 by default.
    pub port: u16,
    /// Certificate and key, PEM; `None` means a generated certificate.
    pub files: Option<(PathBuf, PathBuf)>,
    /// Permits access from boot networks.
    pub boot_network: bool,
}

/// `[process]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// User to which meshd switches after it opened all ports; `None` keeps the present user.
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
    pub policy: EnrollPolicy,
    /// Lifetime of a boot token.
    pub token_ttl: Duration,
    /// Rules for automatic approval, in the order of the file.
    pub rules: Vec<EnrollRule>,
}

/// One `[[enroll.rule]]`: meshd approves a discovered machine that matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnrollRule {
    /// Name in events and in the audit log.
    pub name: RuleName,
    pub criteria: EnrollCriteria,
    /// Profile of an approved machine, unless one is assigned.
    pub profile: Option<ProfileName>,
    /// Labels of an approved machine, unless it has others with the same keys.
    pub labels: BTreeMap<LabelKey, LabelValue>,
    /// Names of approved machines that have a generated name.
    pub node_name: Option<NamePattern>,
}

/// The criteria of a rule. Every present criterion must match; a list matches by one element. At
/// least one criterion is present. Texts are compared trimmed and in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnrollCriteria {
    /// System serial numbers without placeholders of firmware.
    pub serials: BTreeSet<String>,
    pub uuids: BTreeSet<SystemUuid>,
    pub nodes: BTreeSet<NodeId>,
    /// SMBIOS manufacturer.
    pub manufacturer: Option<String>,
    /// SMBIOS product.
    pub product: Option<String>,
    /// Prefixes of the MAC address of the boot NIC.
    pub mac_prefixes: BTreeSet<MacPrefix>,
    /// Boot segments, by [`Segment::name`].
    pub segments: BTreeSet<String>,
    /// Circuit IDs that a relay reports (RFC 3046).
    pub circuit_ids: BTreeSet<RelayIdPattern>,
    /// Remote IDs that a relay reports (RFC 3046).
    pub remote_ids: BTreeSet<RelayIdPattern>,
}

/// `[identity]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// UUIDs that several machines share, in addition to the known placeholders.
    pub deny: DenyList,
}

/// Admission of new nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnrollPolicy {
    /// An operator approves each new node.
    Approve,
    /// meshd approves every new node; for labs only.
    Auto,
}

/// `[boot]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    pub kernel_transport: Transport,
    pub delivery: Delivery,
    /// Folder of `undionly.kpxe`, `snponly.efi`, `ipxe.efi`; Debian's package `ipxe` puts them in
    /// /usr/lib/ipxe.
    pub loaders_dir: PathBuf,
    /// Kernel consoles, such as `ttyS0,115200`; the last one is /dev/console. `None`: those of the
    /// image's architecture.
    pub consoles: Option<Vec<String>>,
    /// Servers of roots besides the central node, asked before it.
    pub root_servers: Vec<SocketAddrV4>,
    /// Maximum number of machines that load at once; others wait in iPXE.
    pub max_loading: usize,
    /// UDP port for kernel messages of booting nodes; `None`: nodes send none.
    pub netconsole_port: Option<u16>,
}

/// Transport of kernel and initrds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// HTTP, the default.
    Http,
    /// TFTP, for networks that block everything else before the operating system runs.
    Tftp,
}

/// Transport of the overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// As an additional initrd; the node never sees the overlay's URL.
    Initrd,
    /// By `apkovl=URL`, for loaders that cannot add an initrd.
    Url,
}

/// `[power]`: access to BMCs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Power {
    /// Maximum number of requests to BMCs at the same time. One BMC gets one at a time.
    pub max_requests: usize,
    /// Minimum time between the power-ons of two machines.
    pub stagger: Duration,
    /// Time limit of one request.
    pub timeout: Duration,
    /// Maximum time from a power-on to the first packet of the machine.
    pub appear_within: Duration,
    /// `None`: stalled boots are not retried.
    pub stall_retries: Option<StallRetryPolicy>,
    /// In the order of the file; the first that matches a machine counts.
    pub rules: Vec<BmcRule>,
}

/// Power cycles of machines whose boot stalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallRetryPolicy {
    /// Maximum number until the node is online or an operator switches it.
    pub count: u32,
    /// Minimum time between two of them.
    pub interval: Duration,
}

impl Default for Power {
    fn default() -> Self {
        Power {
            max_requests: 16,
            stagger: Duration::from_secs(1),
            timeout: Duration::from_secs(30),
            appear_within: Duration::from_secs(10 * 60),
            stall_retries: None,
            rules: Vec::new(),
        }
    }
}

/// One `[[power.bmc]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BmcRule {
    /// Machines by name or ID; empty means all.
    pub nodes: Vec<Hostlist>,
    pub driver: BmcDriver,
    /// Address for machines without one on record; `{name}`, `{id}` and `{mac}` are replaced.
    pub address: Option<String>,
    /// Present for Redfish and IPMI.
    pub login: Option<BmcLogin>,
    /// Present for the driver `command`.
    pub command: Option<BmcCommand>,
    /// SHA-256 of the certificates that a Redfish server may show.
    pub certificates: BTreeSet<Digest>,
    /// PEM file of the authorities of Redfish servers.
    pub ca_file: Option<PathBuf>,
    /// IPMI cipher suite; `None` lets `ipmitool` choose.
    pub cipher_suite: Option<u8>,
    /// Whether meshd records the serial console while a machine boots, if the driver has one.
    pub records_console: bool,
    /// The requests of an order, one after another.
    pub ladder: PowerLadder,
}

/// User of a BMC, and the file of the password: of `password_file`, or of the secret that
/// `password_secret` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BmcLogin {
    pub user: String,
    pub password_file: PathBuf,
}

/// The program of the driver `command`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BmcCommand {
    pub program: PathBuf,
    /// Arguments before the request.
    pub args: Vec<String>,
}

/// One `[programs.NAME]`: a program that rollouts and bisections run on the central node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteProgram {
    pub program: PathBuf,
    pub args: Vec<String>,
    /// Time after which the program is killed.
    pub timeout: Duration,
}
