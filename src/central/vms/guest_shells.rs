//! Shells of guests for administrators: the node of a VM logs in to its guest by SSH. Begin and end
//! are events, and thereby in the audit log; what is typed and shown is not.

use crate::{
    environment::alarms::log_failure,
    links::{ConnectError, ConsoleSession, ShellTerminal, end_detail},
    vms::{Vms, error::VmError, lifecycle::vm_event},
};
use meshd_model::{
    fleet::{AuditContext, EventKind},
    work::{Vm, cloud_init_user},
};
use meshd_proto::{
    FromCentral,
    shell::{GuestShellOrder, GuestUser},
};
use meshd_store::StoreError;
use meshd_types::{NodeId, SystemUuid, VmName, failpoint};

/// A login at a guest, as a caller requests it.
#[derive(Clone, Debug)]
pub struct GuestShellRequest {
    /// Default: the user that the cloud-init data names, else root.
    pub user: Option<GuestUser>,
    /// Trusts the host key that the guest shows now.
    pub forget_host_key: bool,
    pub terminal: ShellTerminal,
}

/// Why a shell of a guest does not open.
#[derive(Debug, thiserror::Error)]
pub enum GuestShellError {
    #[error("cannot open a shell of a guest: the site file has [agent].guest_shells = false")]
    Forbidden,
    #[error(transparent)]
    Vm(#[from] VmError),
    #[error("cannot open a shell of VM {0}: it has no node")]
    Unplaced(VmName),
    #[error(
        "cannot open a shell of VM {0}: it has no cloud-init data, which gives the guest the key of its node"
    )]
    NoCloudInit(VmName),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(GuestShellError {
    GuestShellError::Forbidden => "remove that key, then `meshd reload`; or use `meshd vm console`";
    GuestShellError::Unplaced(name) => "meshd vm start {name}";
    GuestShellError::NoCloudInit(name) => "create it with [cloud_init] in its vm.toml; or use `meshd vm console {name}`";
    @source GuestShellError::Connect(source) => source;
    @source GuestShellError::Vm(source) => source;
    @source GuestShellError::Store(source) => source;
});

/// Returns the node of a VM, and the user of its guest.
fn login(vm: &Vm, user: Option<GuestUser>) -> Result<(NodeId, GuestUser), GuestShellError> {
    let name = vm.name();
    let seed = vm.request.spec.cloud_init.as_ref();
    let seed = seed.ok_or_else(|| GuestShellError::NoCloudInit(name.clone()))?;
    let node = vm.node().ok_or_else(|| GuestShellError::Unplaced(name.clone()))?;
    Ok((node, user.unwrap_or_else(|| cloud_init_user(seed.user_data.expose()))))
}

impl Vms {
    /// Returns an error if the site forbids shells of guests.
    pub fn check_guest_shells(&self) -> Result<(), GuestShellError> {
        if !self.env.site().agent.guest_shells && failpoint::defends("guest-shell-site") {
            return Err(GuestShellError::Forbidden);
        }
        Ok(())
    }

    /// Opens a shell of the guest of a VM on record. The order is recorded before the node begins.
    pub async fn open_guest_shell(
        &self,
        uuid: SystemUuid,
        request: GuestShellRequest,
        audit: &AuditContext,
    ) -> Result<ConsoleSession, GuestShellError> {
        let GuestShellRequest { user, forget_host_key, terminal } = request;
        self.check_guest_shells()?;
        // A node that wrongly reports a VM must not receive what an administrator types.
        let vm = self.vm(uuid).ok_or_else(|| VmError::None(uuid.to_string()))?;
        let (node, user) = login(&vm, user)?;
        self.links.check_console(node)?;
        let host_key = if forget_host_key { ", with any host key" } else { "" };
        let begin = format!("an admin opens a shell as {user}{host_key}");
        self.record_guest_shell(uuid, &begin, audit).await?;
        let order = |console| {
            let shell = terminal.order(console);
            FromCentral::GuestShell(GuestShellOrder { uuid, user, forget_host_key, shell })
        };
        let opened = self.links.open_console(node, order).await;
        if let Err(error) = &opened {
            self.guest_shell_ended(uuid, &error.to_string(), audit).await;
        }
        Ok(opened?)
    }

    /// Records the end of a shell of a guest. `why` may contain words of the node.
    pub async fn guest_shell_ended(&self, uuid: SystemUuid, why: &str, audit: &AuditContext) {
        let recorded = self.record_guest_shell(uuid, &end_detail(why), audit).await;
        log_failure(recorded, "cannot record the end of a shell");
    }

    async fn record_guest_shell(
        &self,
        uuid: SystemUuid,
        detail: &str,
        audit: &AuditContext,
    ) -> Result<(), StoreError> {
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            // The VM may be deleted while a shell is open.
            let event = match tx.vm(uuid) {
                Some(vm) => vm_event(vm, vm.node(), EventKind::VmShell, audit, detail, now),
                None => meshd_model::fleet::Event::new(
                    now,
                    audit,
                    EventKind::VmShell,
                    format!("{uuid}: {detail}"),
                ),
            };
            tx.event(event);
            Ok(())
        });
        stored.await
    }
}
