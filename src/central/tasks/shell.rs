//! Shells of nodes for administrators. Begin and end are events, and thereby in the audit log; what
//! is typed and shown is not.

use super::Tasks;
use crate::{
    environment::alarms::log_failure,
    links::{ConnectError, ConsoleSession},
};
use meshd_model::fleet::{AuditContext, Event, EventKind};
use meshd_proto::{
    FromCentral,
    shell::{ShellOrder, TerminalName, WindowSize},
};
use meshd_store::StoreError;
use meshd_types::{NodeId, failpoint, one_line};
use std::time::Duration;

/// Longest part of a text of the node in an event, in characters.
const MAX_END: usize = 200;

/// Limits of a shell. Somebody leaves the terminal open for a week.
#[derive(Clone, Copy, Debug)]
pub struct ShellLimits {
    /// Time without input after which a shell ends.
    pub idle: Duration,
    /// Time before the end of an idle shell at which its user is warned.
    pub warning: Duration,
    /// Time after which a shell ends in any case.
    pub total: Duration,
}

impl Default for ShellLimits {
    fn default() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        ShellLimits { idle: minutes(30), warning: minutes(1), total: minutes(12 * 60) }
    }
}

/// Time after [`ShellLimits::total`] at which the node ends a shell that the central node did not
/// end.
const NODE_MARGIN: Duration = Duration::from_secs(60);

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
        (window, terminal): (WindowSize, TerminalName),
        audit: &AuditContext,
    ) -> Result<ConsoleSession, ShellError> {
        self.check_shells()?;
        self.links.check_console(node)?;
        self.record_shell(node, "an admin opens a shell", audit).await?;
        let max_s = (ShellLimits::default().total + NODE_MARGIN).as_secs();
        let max_s = u32::try_from(max_s).unwrap_or(u32::MAX);
        let order = |console| FromCentral::Shell(ShellOrder { console, window, terminal, max_s });
        let opened = self.links.open_console(node, order).await;
        if let Err(error) = &opened {
            self.shell_ended(node, &error.to_string(), audit).await;
        }
        Ok(opened?)
    }

    /// Records the end of a shell. `why` may contain words of the node.
    pub async fn shell_ended(&self, node: NodeId, why: &str, audit: &AuditContext) {
        let why: String = one_line(why).to_string().chars().take(MAX_END).collect();
        let recorded = self.record_shell(node, &format!("the shell ended: {why}"), audit).await;
        log_failure(recorded, "cannot record the end of a shell");
    }

    async fn record_shell(
        &self,
        node: NodeId,
        detail: &str,
        audit: &AuditContext,
    ) -> Result<(), StoreError> {
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            tx.event(Event::new(now, audit, EventKind::NodeShell, detail).of_node(node));
            Ok(())
        });
        stored.await
    }
}
