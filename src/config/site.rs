//! A valid site: what every other module may rely on. Only [`super::load`] makes one.

use super::VfioSelector;
use crate::id::{ImageName, OverlayName, ProfileName};
use std::{collections::BTreeMap, net::Ipv4Addr, path::PathBuf, time::Duration};

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
    /// Overlays.
    pub overlays_dir: PathBuf,
    /// Public keys that may log in to nodes as root; none by default.
    pub ssh_keys: Vec<String>,
    /// Never empty. A simple site's `[net]` + `[dhcp]` are the only one.
    pub segments: Vec<Segment>,
    /// Boot plane over HTTP.
    pub http: Http,
    /// Agent plane.
    pub agent: AgentPlane,
    /// Admin plane.
    pub admin: Admin,
    /// Who gets a certificate.
    pub enroll: Enroll,
    /// How machines are booted.
    pub boot: Boot,
    /// What an unknown node boots.
    pub default_profile: ProfileName,
    /// All profiles, with `extends` resolved. Contains `default_profile`.
    pub profiles: BTreeMap<ProfileName, Profile>,
}

/// One layer-2 network on which machines boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Boot services listen here and nowhere else.
    pub interface: String,
    /// What nodes are told; `None` means the interface's first IPv4 address.
    pub address: Option<Ipv4Addr>,
    /// Who owns DHCP here.
    pub mode: DhcpMode,
    /// Present exactly when `mode` is authoritative.
    pub pool: Option<Pool>,
}

/// Who owns DHCP on a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DhcpMode {
    /// meshd leases the addresses.
    Authoritative,
    /// Another server leases them; meshd adds boot information.
    Proxy,
    /// No DHCP service.
    Off,
}

/// Addresses to lease, and what a lease carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// First address, inclusive.
    pub first: Ipv4Addr,
    /// Last address, inclusive.
    pub last: Ipv4Addr,
    /// Length of the network prefix. `[dhcp].netmask`, default 24.
    pub prefix_len: u8,
    /// How long a lease lives.
    pub lease: Duration,
    /// DHCP option 3.
    pub router: Option<Ipv4Addr>,
    /// DHCP option 6.
    pub dns: Vec<Ipv4Addr>,
    /// DHCP option 42.
    pub ntp: Vec<Ipv4Addr>,
    /// DHCP option 15.
    pub domain: Option<String>,
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
    /// The agent that nodes receive; `None` means `mesh-agent` beside this program.
    pub binary: Option<PathBuf>,
}

/// `[admin]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Unix socket of the CLI.
    pub socket: PathBuf,
}

/// `[enroll]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enroll {
    /// Who is let in.
    pub policy: EnrollPolicy,
    /// Life of a boot token.
    pub token_ttl: Duration,
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

/// What a node shall be, with everything inherited already in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub name: ProfileName,
    /// The profile that it extends.
    pub extends: Option<ProfileName>,
    /// Kernel, initramfs, modloop and packages.
    pub image: ImageName,
    /// In order, parents' first; a later one wins.
    pub overlays: Vec<OverlayName>,
    /// Kernel arguments, parents' first.
    pub kernel_args: Vec<String>,
    /// Packages beside those of the overlays, parents' first.
    pub packages: Vec<String>,
    /// PCI devices to hand to virtual machines.
    pub vfio: Vec<VfioSelector>,
}
