//! Connects an operator to the console of a VM. If the operator is slow, the node drops output and
//! reports the gap.

use crate::{
    links::{ConnectError, ConsoleSession},
    vms::{Vms, error::VmError, lifecycle::vm_event},
};
use meshd_model::fleet::{AuditContext, EventKind};
use meshd_proto::{FromCentral, vm::ConsoleOrder};
use meshd_store::StoreError;
use meshd_types::{NodeId, SystemUuid};

/// Why a console does not open.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    #[error(transparent)]
    Vm(#[from] VmError),
    #[error("cannot open the console of VM {0}: it has no node")]
    Unplaced(SystemUuid),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(ConsoleError {
    ConsoleError::Unplaced(_) => "start it first";
    @source ConsoleError::Connect(source) => source;
    @source ConsoleError::Vm(source) => source;
});

impl Vms {
    /// Opens a console: `history` bytes of past output, and with `follow` new output. With `audit`,
    /// the operator may send input, and the opening is recorded.
    pub async fn open_console(
        &self,
        uuid: SystemUuid,
        history: u64,
        follow: bool,
        audit: Option<&AuditContext>,
    ) -> Result<ConsoleSession, ConsoleError> {
        let node = self.console_node(uuid)?;
        self.links.check_console(node)?;
        if let Some(audit) = audit {
            self.record_console(uuid, node, audit).await?;
        }
        let order = |console| FromCentral::Console(ConsoleOrder { console, uuid, history, follow });
        Ok(self.links.open_console(node, order).await?)
    }

    fn console_node(&self, uuid: SystemUuid) -> Result<NodeId, ConsoleError> {
        if let Some(node) = self.env.store.read(|model| model.vm(uuid).map(|vm| vm.node())) {
            // A node that wrongly reports the VM must not receive the operator's input.
            return node.ok_or(ConsoleError::Unplaced(uuid));
        }
        let orphan_node = self
            .orphan_vms()
            .into_iter()
            .find(|(_, report)| report.uuid == uuid)
            .map(|(node, _)| node);
        Ok(orphan_node.ok_or_else(|| VmError::None(uuid.to_string()))?)
    }

    async fn record_console(
        &self,
        uuid: SystemUuid,
        node: NodeId,
        audit: &AuditContext,
    ) -> Result<(), StoreError> {
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            let detail = "an operator opened its console".to_owned();
            let event = match tx.vm(uuid) {
                Some(vm) => vm_event(vm, node, EventKind::VmConsole, audit, detail, now),
                None => meshd_model::fleet::Event::new(
                    now,
                    audit,
                    EventKind::VmConsole,
                    format!("{uuid}: {detail}"),
                )
                .of_node(node),
            };
            tx.event(event);
            Ok(())
        });
        stored.await
    }
}
