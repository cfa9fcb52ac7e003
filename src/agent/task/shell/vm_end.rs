//! Waits for the end of the VM at whose guest a login is. The SSH client would notice only that nobody
//! answers.

use crate::vm::{GuestAccess, LoginFault, WatchedProcess};
use rustix::{io::Errno, process::Pid};
use std::future;

/// Waits until QEMU ends; forever if its process is unknown.
pub(super) async fn until_vm_ends(access: &GuestAccess) -> LoginFault {
    let id = access.qemu.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    match id.map(WatchedProcess::watch) {
        Some(Ok(process)) => process.until_end().await,
        Some(Err(error)) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {}
        _ => future::pending().await,
    }
    let name = &access.name;
    LoginFault::new(
        format!("the VM {name} does not run any more"),
        format!("see why: `meshd vm show {name}`; start it with `meshd vm start {name}`"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::SystemUuid;
    use std::{net::Ipv4Addr, process::Stdio, time::Duration};
    use tokio::{process::Command, time::timeout};

    #[tokio::test]
    async fn end_of_qemu_is_seen_and_its_exit_status_left_to_its_supervisor() {
        let mut qemu = Command::new("cat").stdin(Stdio::piped()).spawn().expect("started");
        let access = GuestAccess {
            name: "web".parse().expect("a name"),
            uuid: SystemUuid([1; 16]),
            address: Ipv4Addr::LOCALHOST,
            qemu: qemu.id(),
            age: Duration::MAX,
            key: "/key".into(),
            known_hosts: "/known_hosts".into(),
            passwd: "/passwd".into(),
            folder: "/vm".into(),
            uid: 5,
            program: "/usr/bin/ssh".into(),
        };
        let early = timeout(Duration::from_millis(1), until_vm_ends(&access)).await;
        assert!(early.is_err(), "{early:?}");
        drop(qemu.stdin.take());
        let fault = until_vm_ends(&access).await;
        assert!(fault.reason.contains("the VM web does not run any more"), "{fault:?}");
        assert_eq!(qemu.wait().await.expect("it is a child").code(), Some(0));
        assert_eq!(until_vm_ends(&access).await, fault, "it ended before");
    }
}
