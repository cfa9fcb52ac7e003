//! Keyrings of the kernel (keyrings(7)). A process inherits the session keyring of its parent, and
//! the other keyrings of a user outlive its processes.

use keyutils::{Keyring, SpecialKeyring};
use meshd_types::failpoint;
use rustix::{
    fs::{Gid, Uid},
    io::Errno,
    thread::{set_thread_res_gid, set_thread_res_uid},
};
use std::{
    io,
    process::{Command, Stdio},
};

/// The hidden verb of mesh-agent.
pub const VERB: &str = "clear-keys";

/// Gives this process an empty session keyring instead of the inherited one. Returns `None` if the
/// kernel has no keyrings.
pub fn join_session() -> Result<Option<Keyring>, String> {
    match Keyring::join_anonymous_session() {
        Ok(session) => Ok(Some(session)),
        Err(error) if error.0 == Errno::NOSYS.raw_os_error() => Ok(None),
        Err(error) => Err(format!("cannot create a session keyring: {error}")),
    }
}

/// Removes the keys of a user in a process of that user. Root's keys belong to the node.
pub fn clear_of(uid: u32) -> Result<(), String> {
    if uid == 0 || !failpoint::defends("task-keys") {
        return Ok(());
    }
    let mut command = Command::new("/proc/self/exe");
    command.args([VERB, "--uid", &uid.to_string()]).env_clear().stdin(Stdio::null());
    let output = command
        .output()
        .map_err(|error| format!("cannot clear the keyrings of user {uid}: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

/// Becomes a user, and removes all links from its keyrings: only the owner of a keyring may clear
/// it.
pub fn clear(uid: u32) -> Result<(), String> {
    let Some(mut session) = join_session()? else { return Ok(()) };
    let user = Uid::from_raw(uid);
    let group = Gid::from_raw(uid);
    set_thread_res_gid(group, group, group)
        .and_then(|()| set_thread_res_uid(user, user, user))
        .map_err(|error| format!("cannot become user {uid}: {error}"))?;
    let mut clear = || -> io::Result<()> {
        let mut user = Keyring::attach(SpecialKeyring::User)?;
        user.clear()?;
        let mut user_session = Keyring::attach(SpecialKeyring::UserSession)?;
        user_session.clear()?;
        // As the kernel creates it.
        user_session.link_keyring(&user)?;
        match session.attach_persistent() {
            Err(error) if error.0 == Errno::OPNOTSUPP.raw_os_error() => Ok(()),
            persistent => Ok(persistent?.clear()?),
        }
    };
    clear().map_err(|error| {
        format!("cannot clear the keyrings of user {uid}: {error}; reboot the node")
    })
}
