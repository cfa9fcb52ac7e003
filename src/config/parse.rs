//! Parses `site.toml` section by section, then checks rules between sections.

use super::{
    AgentSettings, Boot, Delivery, Faults, Http, InterfaceNetwork, Site, Transport, check,
    reader::{self, Document, Located, Table, brief, checked, or, write_duration},
};
use crate::sections::{
    admin, dhcp_reservation, enroll, groups, metrics, power, profiles, programs, secrets, segment,
    vms,
};
use std::{
    net::SocketAddrV4,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

const HOUR: u64 = 3600;
/// Bounds of `[agent].heartbeat`.
const HEARTBEAT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(HOUR);
/// Bounds of `[agent].offline_after`.
const OFFLINE_AFTER: RangeInclusive<Duration> =
    Duration::from_secs(2)..=Duration::from_secs(24 * HOUR);
const MAX_SSH_KEYS: usize = 256;
const MAX_CONSOLES: usize = 4;
/// Bounds of `[boot].max_loading`.
const MAX_LOADING: RangeInclusive<usize> = 1..=100_000;
/// Maximum number of `[boot].root_servers`.
const MAX_ROOT_SERVERS: usize = 8;
/// Default of `[boot].max_loading`: enough to fill 25 Gbit/s with ordinary NICs, and few enough
/// that a share of 1 Gbit/s loads an image of 60 MB within two minutes, far below the timeout of
/// any boot stage.
const DEFAULT_MAX_LOADING: usize = 256;

/// Parses a `site.toml`; returns all faults in line order. Paths in the text are relative to the
/// folder of `file`.
pub fn parse(text: &str, file: &Path) -> Result<Site, Faults> {
    parse_with(text, file, &[])
}

/// As [`parse`], with networks of interfaces, which define default netmasks.
pub fn parse_with(text: &str, file: &Path, networks: &[InterfaceNetwork]) -> Result<Site, Faults> {
    let document = reader::parse(text, file)?;
    let site = read(&document, file, networks);
    document.finish(site)
}

fn read(document: &Document, file: &Path, networks: &[InterfaceNetwork]) -> Option<Site> {
    let root = document.root();
    root.reserved("store");
    // Every section is read before the first `?`, so that all faults are reported.
    let head = head(document, &root, file);
    let segments = segment::read(document, &root, networks);
    let reservations = dhcp_reservation::read(document, &root, &segments);
    let vms = vms::read(document, &root, &segments);
    let listeners = listeners(document, &root);
    let taken =
        listeners.as_ref().map(|(http, agent)| [("[http]", http.port), ("[agent]", agent.port)]);
    let taken = taken.as_ref().map_or(&[][..], |taken| taken);
    let metrics = metrics::read(document, &root, taken);
    let admin = admin::read(document, &root, taken);
    let process = admin::process(document, &root);
    let identity = enroll::identity(&root);
    let boot = boot(document, &root);
    let profiles = profiles::read(document, &root);
    let names: Option<Vec<_>> = profiles.as_ref().map(|(_, all)| all.keys().cloned().collect());
    let known = enroll::Known { segments: &segments, profiles: names.as_deref() };
    let enroll = enroll::read(document, &root, known);
    let groups = groups::read(document, &root);
    let mut secrets = secrets::read(document, &root);
    let power = power::read(document, &root, &mut secrets);
    let programs = programs::read(document, &root);
    let (head, (http, agent)) = (head?, listeners?);
    let (default_profile, profiles) = profiles?;
    let (reservations, node_names) = reservations?;
    Some(Site {
        name: head.name,
        file: file.to_owned(),
        state_dir: head.state_dir,
        blobs_dir: head.blobs_dir,
        images_dir: head.images_dir,
        overlays_dir: head.overlays_dir,
        ssh_keys: head.ssh_keys,
        segments: segments.valid()?,
        own_addresses: networks.iter().map(|network| network.address).collect(),
        reservations,
        node_names,
        vms: vms?,
        http,
        agent,
        admin: admin?,
        metrics: metrics?,
        process: process?,
        enroll: enroll?,
        identity: identity?,
        boot: boot?,
        default_profile,
        profiles,
        groups: groups?,
        power: power?,
        programs: programs?,
        secrets,
    })
}

struct Head {
    name: String,
    state_dir: PathBuf,
    blobs_dir: PathBuf,
    images_dir: PathBuf,
    overlays_dir: PathBuf,
    ssh_keys: Vec<String>,
}

fn head(document: &Document, root: &Table<'_>, file: &Path) -> Option<Head> {
    let site = root.required("site", root.table("site"), "begin with [site] name = \"rack-a\"")?;
    let name =
        site.required("name", site.string("name"), "give the site a name: name = \"rack-a\"");
    let name = name.and_then(|name| checked(document, name, check::name));
    let folder = file.parent().unwrap_or(Path::new(""));
    let state_dir = or(&site, "state_dir", site.path("state_dir"), "/var/lib/meshd".into());
    let blobs_dir = site.path("blobs_dir");
    let images_dir = or(&site, "images_dir", site.path("images_dir"), folder.join("images"));
    let overlays_dir =
        or(&site, "overlays_dir", site.path("overlays_dir"), folder.join("overlays"));
    let ssh_keys = site.strings("ssh_keys");
    site.is_within("ssh_keys", MAX_SSH_KEYS, ssh_keys.len(), "keys");
    let ssh_keys = ssh_keys.into_iter().filter_map(|key| checked(document, key, check::ssh_key));
    let ssh_keys = ssh_keys.map(|key| key.trim().to_owned()).collect();
    let state_dir = state_dir?;
    Some(Head {
        name: name?,
        blobs_dir: or(&site, "blobs_dir", blobs_dir, state_dir.join("blobs"))?,
        state_dir,
        images_dir: images_dir?,
        overlays_dir: overlays_dir?,
        ssh_keys,
    })
}

/// Reads `[http]` and `[agent]`, which must not share a port.
fn listeners(document: &Document, root: &Table<'_>) -> Option<(Http, AgentSettings)> {
    const DEFAULT_PORT: u16 = 8080;
    let tables = (root.table("http"), root.table("agent"));
    let http = match &tables.0 {
        Some(http) => or(http, "port", http.port("port"), DEFAULT_PORT),
        None => (!root.has("http")).then_some(DEFAULT_PORT),
    };
    let agent = match &tables.1 {
        Some(table) => agent(document, table),
        None => (!root.has("agent")).then(default_agent),
    };
    let http = http?;
    let agent = agent?;
    if agent.port == http {
        let written = [&tables.1, &tables.0].into_iter().flatten().find(|table| table.has("port"));
        let position = written.map_or_else(|| root.own_position(), |table| table.position("port"));
        document.fault(
            &position,
            format!("[http] and [agent] both have port {http}"),
            "give them different ports",
        );
    }
    Some((Http { port: http }, agent))
}

fn default_agent() -> AgentSettings {
    AgentSettings {
        port: 8443,
        heartbeat: Duration::from_secs(30),
        offline_after: Duration::from_secs(60),
        root_tasks: true,
        guest_shells: true,
        binary: None,
    }
}

fn agent(document: &Document, agent: &Table<'_>) -> Option<AgentSettings> {
    let default = default_agent();
    let port = or(agent, "port", agent.port("port"), default.port);
    let written =
        (agent.duration("heartbeat", HEARTBEAT), agent.duration("offline_after", OFFLINE_AFTER));
    let at = written.1.as_ref().map_or_else(|| agent.own_position(), |span| span.with(()));
    let heartbeat = or(agent, "heartbeat", written.0, default.heartbeat);
    let offline_after = or(agent, "offline_after", written.1, default.offline_after);
    let root_tasks = or(agent, "root_tasks", agent.bool("root_tasks"), default.root_tasks);
    let guest_shells = or(agent, "guest_shells", agent.bool("guest_shells"), default.guest_shells);
    let binary = agent.path("binary").map(|path| path.value);
    if let (Some(heartbeat), Some(offline)) = (heartbeat, offline_after)
        && heartbeat >= offline
    {
        let beat = write_duration(heartbeat);
        let silent = write_duration(offline);
        let message = format!("a node that speaks every {beat} would be offline after {silent}");
        document.fault(
            &at,
            message,
            format!("make offline_after at least {}", write_duration(heartbeat * 2)),
        );
    }
    Some(AgentSettings {
        port: port?,
        heartbeat: heartbeat?,
        offline_after: offline_after?,
        root_tasks: root_tasks?,
        guest_shells: guest_shells?,
        binary,
    })
}

fn boot(document: &Document, root: &Table<'_>) -> Option<Boot> {
    let default = Boot {
        kernel_transport: Transport::Http,
        delivery: Delivery::Initrd,
        loaders_dir: "/usr/lib/ipxe".into(),
        consoles: None,
        root_servers: Vec::new(),
        max_loading: DEFAULT_MAX_LOADING,
        netconsole_port: None,
    };
    let Some(boot) = root.table("boot") else { return (!root.has("boot")).then_some(default) };
    let transports = [("http", Transport::Http), ("tftp", Transport::Tftp)];
    let deliveries = [("initrd", Delivery::Initrd), ("url", Delivery::Url)];
    let transport = boot.choice("kernel_transport", &transports);
    let kernel_transport = or(&boot, "kernel_transport", transport, default.kernel_transport);
    let delivery = or(&boot, "delivery", boot.choice("delivery", &deliveries), default.delivery);
    let loaders_dir = or(&boot, "loaders_dir", boot.path("loaders_dir"), default.loaders_dir);
    let consoles = boot.strings("consoles");
    boot.is_within("consoles", MAX_CONSOLES, consoles.len(), "consoles");
    let consoles: Vec<String> =
        consoles.into_iter().filter_map(|text| checked(document, text, check::console)).collect();
    let consoles = boot.has("consoles").then_some(consoles);
    let root_servers = root_servers(document, &boot);
    let max_loading =
        or(&boot, "max_loading", boot.integer("max_loading", MAX_LOADING), default.max_loading);
    let kernel_transport = kernel_transport?;
    let delivery = delivery?;
    let loaders_dir = loaders_dir?;
    let netconsole_port = boot.integer("netconsole_port", 1024..=65_535_u16).map(|port| port.value);
    let max_loading = max_loading?;
    Some(Boot {
        kernel_transport,
        delivery,
        loaders_dir,
        consoles,
        root_servers,
        max_loading,
        netconsole_port,
    })
}

fn root_servers(document: &Document, boot: &Table<'_>) -> Vec<SocketAddrV4> {
    let servers = boot.strings("root_servers");
    boot.is_within("root_servers", MAX_ROOT_SERVERS, servers.len(), "servers");
    let one = |text: Located<String>| {
        let server = text.parse::<SocketAddrV4>().ok().filter(|server| server.port() > 0);
        if server.is_none() {
            let what = format!("`{}` is not an IPv4 address with a port", brief(&text));
            document.fault(&text, what, "write \"10.77.0.2:8080\"");
        }
        server
    };
    servers.into_iter().filter_map(one).collect()
}
