//! Drops privileges while the process has one thread, because later threads inherit capabilities.
//!
//! With `[process].user`, meshd switches to that user before it opens anything, and keeps the three
//! capabilities that its network needs. Files and sockets that are opened later, for example on a
//! new interface, then work as at the start.

use meshd_config::Site;
use nix::unistd::{Gid, Uid, User, chown, initgroups, setresgid, setresuid};
use rustix::{
    fs::Mode,
    io::Errno,
    process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit, umask},
    thread::{
        CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities,
        set_no_new_privs,
    },
};
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

/// Capabilities for ports below 1024, for packet sockets, and for entries of the neighbour table
/// that ARP does not change.
const KEPT: CapabilitySet =
    CapabilitySet::NET_BIND_SERVICE.union(CapabilitySet::NET_RAW).union(CapabilitySet::NET_ADMIN);
/// Capabilities without which DHCP and TFTP cannot be opened.
const REQUIRED: CapabilitySet = CapabilitySet::NET_BIND_SERVICE.union(CapabilitySet::NET_RAW);

/// Reason why the process cannot run with the configured privileges.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// The user does not exist.
    #[error("[process].user: there is no user `{0}`")]
    NoUser(String),
    /// The process runs as another user.
    #[error("[process].user is `{user}`, but meshd was started as user ID {uid}")]
    NotRoot {
        /// Configured user.
        user: String,
        /// User ID of the process.
        uid: u32,
    },
    /// A file belongs to another user.
    #[error("{} belongs to user ID {uid}, and meshd runs as {user}", path.display())]
    Owner {
        path: PathBuf,
        uid: u32,
        /// Configured user.
        user: String,
    },
    /// A folder cannot be created.
    #[error("cannot make {}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    /// The kernel refused a call.
    #[error("cannot {what}: meshd refuses to run with more privileges than it needs")]
    Kernel { what: &'static str, source: io::Error },
}

meshd_types::hints!(PrivilegeError {
    PrivilegeError::NoUser(user) => "make one with `useradd --system {user}`, or remove the key";
    PrivilegeError::NotRoot { user, .. } => "start it as root or as {user}";
    PrivilegeError::Owner { path, user, .. } => "run: chown -R {user}: {}", path.display();
});

fn privilege_error<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> PrivilegeError {
    move |source| PrivilegeError::Kernel { what, source: source.into() }
}

/// Sets the privileges for the lifetime of the process. Call this before the process has a second
/// thread.
///
/// # Errors
/// The process must not serve after an error.
pub fn settle(site: &Site) -> Result<(), PrivilegeError> {
    // Files created from here on are private. The admin socket sets its mode explicitly.
    umask(Mode::RWXG | Mode::RWXO);
    super::open_file_limit::raise_limit();
    let uid = Uid::effective();
    if let Some(name) = &site.process.user {
        let user = User::from_name(name).map_err(privilege_error("look up a user"))?;
        let user = user.ok_or_else(|| PrivilegeError::NoUser(name.clone()))?;
        if uid.is_root() && !user.uid.is_root() {
            prepare(site, &user)?;
            become_user(&user)?;
        } else if uid != user.uid {
            return Err(PrivilegeError::NotRoot { user: name.clone(), uid: uid.as_raw() });
        }
        own(&site.state_dir, &user)?;
    }
    if !Uid::effective().is_root() {
        keep_only_what_ports_want()?;
    }
    set_no_new_privs(true).map_err(privilege_error("set no_new_privs"))?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(privilege_error("disable core dumps"))?;
    // This call must be the last: a change of the user resets the flag.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(privilege_error("disable core dumps"))?;
    log_privileges();
    Ok(())
}

/// Creates the user's folders while the process is root.
fn prepare(site: &Site, user: &User) -> Result<(), PrivilegeError> {
    let socket = site.admin.socket.parent().filter(|folder| !folder.as_os_str().is_empty());
    for (path, mode) in [(Some(&*site.state_dir), 0o700), (socket, 0o755)] {
        let Some(path) = path.filter(|path| !path.exists()) else { continue };
        let failed = |source| PrivilegeError::Folder { path: path.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(mode).create(path).map_err(failed)?;
        chown(path, Some(user.uid), Some(user.gid)).map_err(|error| failed(error.into()))?;
        // The umask removed the permissions of group and others.
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
            .map_err(failed)?;
    }
    Ok(())
}

fn own(path: &Path, user: &User) -> Result<(), PrivilegeError> {
    match fs::metadata(path) {
        Ok(found) if found.uid() != user.uid.as_raw() => Err(PrivilegeError::Owner {
            path: path.to_owned(),
            uid: found.uid(),
            user: user.name.clone(),
        }),
        // A missing path is created later by the user; a failure there has a separate error.
        _ => Ok(()),
    }
}

/// Drops all capabilities except those for ports. The parent process may have passed more, and
/// child processes need none.
fn keep_only_what_ports_want() -> Result<(), PrivilegeError> {
    clear_ambient_capability_set().map_err(privilege_error("drop capabilities"))?;
    let permitted =
        capabilities(None).map_err(privilege_error("read the capabilities"))?.permitted & KEPT;
    let retained =
        CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() };
    set_capabilities(None, retained)
        .map_err(privilege_error("keep CAP_NET_BIND_SERVICE, CAP_NET_RAW and CAP_NET_ADMIN alone"))
}

fn become_user(user: &User) -> Result<(), PrivilegeError> {
    let (uid, gid): (Uid, Gid) = (user.uid, user.gid);
    let name = std::ffi::CString::new(user.name.as_str())
        .map_err(|_| PrivilegeError::NoUser(user.name.clone()))?;
    for bit in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        match remove_capability_from_bounding_set(bit) {
            // The previous capability was the last one that this kernel knows.
            Err(Errno::INVAL) => break,
            done => done.map_err(privilege_error("drop capabilities"))?,
        }
    }
    set_keep_capabilities(true).map_err(privilege_error("keep capabilities"))?;
    initgroups(&name, gid).map_err(privilege_error("set the groups of a user"))?;
    setresgid(gid, gid, gid).map_err(privilege_error("set the group of a user"))?;
    setresuid(uid, uid, uid).map_err(privilege_error("change the user"))
}

fn log_privileges() {
    let uid = Uid::effective();
    let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    if uid.is_root() {
        tracing::warn!("meshd runs as root; set [process].user in site.toml, except in a lab");
    } else if effective.contains(REQUIRED) {
        tracing::info!(%uid, "meshd runs without root; it may open low ports and packet sockets, and nothing else");
        if !effective.contains(KEPT) {
            tracing::warn!(
                "meshd lacks CAP_NET_ADMIN: it cannot bind addresses of machines that boot to their NICs"
            );
        }
    } else {
        tracing::warn!(%uid, "meshd has neither CAP_NET_BIND_SERVICE nor CAP_NET_RAW: DHCP and TFTP cannot be opened");
    }
}
