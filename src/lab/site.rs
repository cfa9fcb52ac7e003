//! The rack's site file: the user's, with paths, interface and policy replaced.

use super::{Identity, LabError};
use crate::network::bridge::BRIDGE;
use meshd_config::{Owner, Site, load};
use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value, value};

/// Longest path of a Unix socket on Linux, in bytes.
pub const SOCKET_PATH_LIMIT: usize = 107;
/// Range of the lab's segment if the user's site leases no addresses.
const DEFAULT_RANGE: &str = "10.77.0.100-10.77.0.200";
const DEFAULT_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Prefix length of the lab's segment if another server leases the addresses.
const DEFAULT_PREFIX_LEN: u8 = 24;

/// The files and folders of a rack.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The rack's folder.
    pub dir: PathBuf,
    /// The rack's site file.
    pub site: PathBuf,
    /// Store, CA and keys of the rack; deleted with it.
    pub state: PathBuf,
    /// Built images; not deleted.
    pub blobs: PathBuf,
    /// Admin socket.
    pub socket: PathBuf,
    pub log: PathBuf,
}

impl Layout {
    /// Returns the layout of an absolute folder; `blobs` may be shared between racks.
    pub fn of(dir: &Path, blobs: Option<&Path>) -> Self {
        Layout {
            dir: dir.to_owned(),
            site: dir.join("site.toml"),
            state: dir.join("state"),
            blobs: blobs.map_or_else(|| dir.join("blobs"), Path::to_owned),
            socket: dir.join("admin.sock"),
            log: dir.join("meshd.log"),
        }
    }

    /// Refuses a folder in which socket names would be too long.
    pub fn check(&self) -> Result<(), LabError> {
        let longest = self.dir.join("node64.qmp");
        let fits = longest.as_os_str().len() <= SOCKET_PATH_LIMIT;
        if fits { Ok(()) } else { Err(LabError::PathTooLong { path: longest }) }
    }
}

/// An overridden key of the site file: `boot.kernel_transport` and `"tftp"`.
pub type Setting = (String, String);

/// Derives the site file of a rack with a number of nodes from the user's, writes it, and loads it.
pub fn derive(
    user: &Path,
    layout: &Layout,
    settings: &[Setting],
    nodes: u8,
) -> Result<Site, LabError> {
    // The rack's file is in another folder, so relative paths of the user's file must become
    // absolute.
    let user = &std::path::absolute(user).map_err(LabError::file("find", user))?;
    let user_site = load(user)?;
    let text = fs::read_to_string(user).map_err(LabError::file("read", user))?;
    let derived = rewrite(&text, &user_site, layout, settings, nodes)?;
    // A running meshd may read the file, so a valid file replaces it atomically.
    let temporary = layout.site.with_extension("toml.new");
    fs::write(&temporary, derived).map_err(LabError::file("write", &temporary))?;
    load(&temporary)?;
    fs::rename(&temporary, &layout.site).map_err(LabError::file("write", &layout.site))?;
    Ok(load(&layout.site)?)
}

fn rewrite(
    text: &str,
    user_site: &Site,
    layout: &Layout,
    settings: &[Setting],
    nodes: u8,
) -> Result<String, LabError> {
    let mut document: DocumentMut =
        text.parse().map_err(|error: toml_edit::TomlError| LabError::Site(error.to_string()))?;
    let path = |path: &Path| Value::from(path.display().to_string());
    let mut set = |key: &str, to: Value| assign(&mut document, key, to);
    set("site.state_dir", path(&layout.state))?;
    set("site.blobs_dir", path(&layout.blobs))?;
    // The user's file may contain relative paths.
    set("site.images_dir", path(&user_site.images_dir))?;
    set("site.overlays_dir", path(&user_site.overlays_dir))?;
    set("boot.loaders_dir", path(&user_site.boot.loaders_dir))?;
    for (name, secret) in &user_site.secrets {
        let mut named = InlineTable::new();
        named.insert("file", path(&secret.file));
        let overlays = secret
            .overlays
            .iter()
            .map(|names| names.iter().map(|name| name.as_str()).collect::<Array>());
        named.extend(overlays.map(|names| ("overlays", Value::from(names))));
        set(&format!("secrets.{name}"), named.into())?;
    }
    if let Some(binary) = &user_site.agent.binary {
        set("agent.binary", path(binary))?;
    }
    set("admin.socket", path(&layout.socket))?;
    set("net.interface", BRIDGE.into())?;
    set("dhcp.mode", "authoritative".into())?;
    set("net.address", address(user_site).to_string().into())?;
    if subnet(user_site).is_none() {
        set("dhcp.range", DEFAULT_RANGE.into())?;
    }
    for (key, to) in settings {
        set(key, to.parse().unwrap_or_else(|_| Value::from(to.as_str())))?;
    }
    name_nodes(&mut document, user_site, nodes);
    Ok(format!(
        "# Made by `meshd lab` from {}: changes are lost.\n{document}",
        user_site.file.display()
    ))
}

/// Adds a reservation of a name for each node of the rack, unless the user's site uses the name or
/// names the node.
fn name_nodes(document: &mut DocumentMut, user_site: &Site, nodes: u8) {
    let names =
        (1..=nodes).map(|position| (Identity::at(position).node_id(), Identity::name_at(position)));
    let is_unused = |owner: &Owner, name: &String| {
        !user_site.node_names.contains_key(owner)
            && !user_site.node_names.values().any(|used| used == name)
    };
    for (node, name) in names.filter(|(node, name)| is_unused(&Owner::Node(*node), name)) {
        let fields = [("node", node.to_string()), ("name", name)];
        let reservation: InlineTable =
            fields.into_iter().map(|(key, text)| (key, Value::from(text))).collect();
        match document.entry("reservation").or_insert(Item::ArrayOfTables(ArrayOfTables::new())) {
            Item::ArrayOfTables(tables) => tables.push(reservation.into_table()),
            item => item
                .as_array_mut()
                .into_iter()
                .for_each(|array: &mut Array| array.push(reservation.clone())),
        }
    }
}

fn subnet(site: &Site) -> Option<&meshd_config::Subnet> {
    site.segments.first().and_then(|segment| segment.subnet.as_ref())
}

/// Returns the prefix length of the rack's network.
pub fn prefix_len(site: &Site) -> u8 {
    subnet(site).map_or(DEFAULT_PREFIX_LEN, |subnet| subnet.prefix_len)
}

/// Returns the user's address, or the first one of the pool's network.
fn address(site: &Site) -> Ipv4Addr {
    let Some(subnet) = subnet(site) else { return DEFAULT_ADDRESS };
    let mask = u32::MAX.checked_shl(32 - u32::from(subnet.prefix_len.clamp(1, 32))).unwrap_or(0);
    let first = Ipv4Addr::from((u32::from(subnet.first) & mask) + 1);
    site.segments.first().and_then(|segment| segment.address).unwrap_or(first)
}

/// Sets `table.key`, or `a.b.key`, and creates missing tables.
fn assign(document: &mut DocumentMut, key: &str, to: Value) -> Result<(), LabError> {
    let mut parts: Vec<&str> = key.split('.').collect();
    let last = parts.pop().filter(|last| !last.is_empty());
    let fault = || {
        LabError::Options(format!(
            "`{key}` is not a key of site.toml; write it as `boot.kernel_transport`"
        ))
    };
    let last = last.ok_or_else(fault)?;
    let mut table: &mut Table = document.as_table_mut();
    for part in parts {
        let item = table.entry(part).or_insert_with(|| Item::Table(Table::new()));
        table = item.as_table_mut().ok_or_else(fault)?;
    }
    table.insert(last, value(to));
    Ok(())
}

#[cfg(test)]
#[path = "site_tests.rs"]
mod tests;
