//! Shells of nodes for administrators. Begin and end are events, and thereby in the audit log; what
//! is typed and shown is not.

use super::Tasks;
use crate::links::{ConnectError, ConsoleSession, ShellTerminal, end_detail};
use meshd_model::fleet::{AuditContext, Event, EventKind};
use meshd_proto::FromCentral;
use meshd_store::StoreError;
use meshd_types::{NodeId, failpoint};

/// Why a shell does not open.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    #[error("cannot open a shell: the site file has [agent].root_tasks = false")]
    RootForbidden,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(ShellError {
    ShellError::RootForbidden => "remove that key, then `meshd reload`";
    @source ShellError::Connect(source) => source;
    @source ShellError::Store(source) => source;
});

impl Tasks {
    /// Returns an error if the site forbids shells.
    pub fn check_shells(&self) -> Result<(), ShellError> {
        if !self.env.site().agent.root_tasks && failpoint::defends("shell-root-tasks") {
            return Err(ShellError::RootForbidden);
        }
        Ok(())
    }

    /// Opens a shell. The order is recorded before the node starts the shell.
    pub async fn open_shell(
        &self,
        node: NodeId,
        terminal: ShellTerminal,
        audit: &AuditContext,
    ) -> Result<ConsoleSession, ShellError> {
        self.check_shells()?;
        self.links.check_console(node)?;
        self.env.store_event(self.shell_event(node, "an admin opens a shell", audit)).await?;
        let order = |console| FromCentral::Shell(terminal.order(console));
        let opened = self.links.open_console(node, order).await;
        if let Err(error) = &opened {
            self.shell_ended(node, &error.to_string(), audit).await;
        }
        Ok(opened?)
    }

    /// Records the end of a shell. `why` may contain words of the node.
    pub async fn shell_ended(&self, node: NodeId, why: &str, audit: &AuditContext) {
        self.env.record(self.shell_event(node, &end_detail(why), audit)).await;
    }

    fn shell_event(&self, node: NodeId, detail: &str, audit: &AuditContext) -> Event {
        Event::new(self.env.now(), audit, EventKind::NodeShell, detail).of_node(node)
    }
}
