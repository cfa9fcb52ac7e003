//! Removes from a root what belongs to one machine: all nodes would have the same identity, and
//! keys that everybody can read.

use super::{
    contents::ContentStore,
    tree::{Inode, InodeKind, Meta, RootTree},
};
use std::{collections::BTreeMap, io};

/// Folder and beginning of the names of keys that sshd makes when it is installed.
const SSH_KEYS: (&str, &str) = ("etc/ssh", "ssh_host_");
/// Seeds of random numbers, the secret that encrypts credentials, and the key with which munged
/// authenticates users.
const SECRETS: [&str; 3] =
    ["var/lib/systemd/random-seed", "var/lib/systemd/credential.secret", "etc/munge/munge.key"];
/// Files with the ID of a machine. An empty file asks systemd for a new ID, without the steps of a
/// first boot.
const IDS: [&str; 2] = ["etc/machine-id", "var/lib/dbus/machine-id"];

/// Removes keys, seeds and IDs of the machine that made the root.
pub(super) fn remove(tree: &mut RootTree, contents: &mut ContentStore) -> io::Result<()> {
    let (folder, start) = SSH_KEYS;
    let keys = tree.names_in(folder).into_iter().filter(|name| name.starts_with(start));
    let keys = keys.map(|name| format!("{folder}/{name}"));
    let paths: Vec<String> = keys.chain(SECRETS.map(str::to_owned)).collect();
    for path in paths.iter().map(String::as_str).chain(IDS) {
        let Some((at, _)) = tree.resolve(path) else { continue };
        tree.remove(&at).map_err(io::Error::other)?;
        if path == IDS[0] {
            let content = contents.add(0, io::empty())?;
            let meta =
                Meta { mode: 0o444, owner: 0, group: 0, time: 0, attributes: BTreeMap::new() };
            let inode = Inode { kind: InodeKind::File { content, size: 0 }, meta };
            tree.put(&at, inode).map_err(io::Error::other)?;
        }
    }
    Ok(())
}
