//! `[admin]`, `[admin.https]` and `[process]`: operator access, and the user that meshd runs as.

use crate::{
    Admin, AdminHttps, Process, check,
    reader::{Document, Table, or},
};
use std::{net::Ipv4Addr, path::PathBuf};

/// The default port of the agent API plus one.
const DEFAULT_PORT: u16 = 8444;
/// Maximum length of a Linux user name.
const MAX_USER: usize = 32;

/// Reads `[admin]`.
pub(crate) fn read(document: &Document, root: &Table<'_>, taken: &[(&str, u16)]) -> Option<Admin> {
    let Some(admin) = root.table("admin") else {
        return (!root.has("admin")).then(|| Admin { socket: default_socket(), https: None });
    };
    let socket = socket_of(document, &admin);
    let https = match admin.table("https") {
        Some(table) => Some(https(document, &table, taken)?),
        None if admin.has("https") => return None,
        None => None,
    };
    Some(Admin { socket: socket?, https })
}

pub(crate) fn default_socket() -> PathBuf {
    "/run/meshd/admin.sock".into()
}

/// Reads only `[admin].socket`, for a file that may have faults elsewhere.
pub(crate) fn socket(document: &Document, root: &Table<'_>) -> Option<PathBuf> {
    match root.table("admin") {
        Some(admin) => socket_of(document, &admin),
        None => (!root.has("admin")).then(default_socket),
    }
}

fn socket_of(document: &Document, admin: &Table<'_>) -> Option<PathBuf> {
    let socket = admin.path("socket");
    if let Some(socket) = &socket
        && socket.as_os_str().len() > check::MAX_SOCKET_PATH
    {
        let length = socket.as_os_str().len();
        let hint =
            format!("a Unix socket takes {} bytes; use a shorter path", check::MAX_SOCKET_PATH);
        document.fault(socket, format!("a path of {length} bytes"), hint);
    }
    or(admin, "socket", socket, default_socket())
}

fn https(document: &Document, https: &Table<'_>, taken: &[(&str, u16)]) -> Option<AdminHttps> {
    let hint = "write an address of this machine that is not on a boot network, such as 127.0.0.1";
    let address = https.required("address", https.ipv4("address"), hint);
    if let Some(address) = &address
        && (address.is_multicast() || address.is_broadcast())
    {
        document.fault(address, format!("`{}` is not a host address", address.value), hint);
    }
    let port = or(https, "port", https.port("port"), DEFAULT_PORT);
    if let Some((section, port)) = taken.iter().find(|(_, taken)| port == Some(*taken)) {
        let message = format!("[admin.https] and {section} both have port {port}");
        document.fault(&https.position("port"), message, "give them different ports");
    }
    let boot_network = or(https, "boot_network", https.bool("boot_network"), false);
    if let (Some(address), Some(false)) = (&address, boot_network)
        && address.value == Ipv4Addr::UNSPECIFIED
    {
        let hint = "write one address that is not on a boot network, or boot_network = true to permit this";
        document.fault(address, "0.0.0.0 includes the boot networks", hint);
    }
    let certificate = https.path("certificate");
    let key = https.path("key");
    for (file, missing) in [(&certificate, "key"), (&key, "certificate")] {
        if file.is_some() && !https.has(missing) {
            https.fault(
                missing,
                "is required",
                "name certificate and key, or neither: meshd then generates its own",
            );
        }
    }
    if https.has("certificate") != certificate.is_some() || https.has("key") != key.is_some() {
        return None;
    }
    let files = certificate.zip(key).map(|(certificate, key)| (certificate.value, key.value));
    Some(AdminHttps { address: address?.value, port: port?, files, boot_network: boot_network? })
}

/// Reads `[process]`.
pub(crate) fn process(document: &Document, root: &Table<'_>) -> Option<Process> {
    let Some(process) = root.table("process") else {
        return (!root.has("process")).then(Process::default);
    };
    let user = process.word("user");
    if user.is_none() && process.has("user") {
        return None;
    }
    if let Some(user) = &user {
        let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
        if user.len() > MAX_USER || !user.bytes().all(plain) || user.starts_with('-') {
            document.fault(
                user,
                format!("`{}` is not a user name", user.value),
                "write a user of /etc/passwd",
            );
            return None;
        }
    }
    Some(Process { user: user.map(|user| user.value) })
}
