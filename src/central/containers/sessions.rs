//! Connects a caller to the log of a replica, and an admin to a program in it. If the reader of a
//! log is slow, the node drops output and reports the gap. Begin and end of a program are events,
//! and thereby in the audit log; its arguments and what it reads and writes are not.

use super::{Containers, error::ContainerError, lifecycle::replica_event};
use crate::links::{ConnectError, ConsoleSession, ShellTerminal, end_detail};
use meshd_model::fleet::AuditContext;
use meshd_proto::{
    FromCentral,
    container::{ExecOrder, LogsOrder, ReplicaId},
    task::check_argv,
};
use meshd_store::StoreError;
use meshd_types::{NodeId, ParseError};

/// A program in a replica, as a caller requests it.
#[derive(Clone, Debug)]
pub struct ReplicaExecRequest {
    /// Program and arguments; no shell interprets them.
    pub argv: Vec<String>,
    pub terminal: ShellTerminal,
}

/// Why the log of a replica, or a program in it, does not open.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaSessionError {
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error("cannot open container `{name}`: it has {count} replicas")]
    Several { name: String, count: usize },
    #[error("there is no replica `{0}`")]
    NoReplica(ReplicaId),
    #[error("cannot open replica {0}: it has no node")]
    Unplaced(ReplicaId),
    #[error("cannot run a program in replica {replica}: {source}")]
    Argv { replica: ReplicaId, source: ParseError },
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

meshd_types::hints!(ReplicaSessionError {
    ReplicaSessionError::Several { name, .. } => "name one replica, such as {name}.0";
    ReplicaSessionError::NoReplica(id) => "`meshd container show {}` lists its replicas", id.container;
    ReplicaSessionError::Unplaced(_) => "its log ended with its node; `meshd container show` names the reason";
    @source ReplicaSessionError::Container(source) => source;
    @source ReplicaSessionError::Argv { source, .. } => source;
    @source ReplicaSessionError::Connect(source) => source;
    @source ReplicaSessionError::Store(source) => source;
});

impl Containers {
    /// Opens the recorded output of a replica, and with `follow` its new output. A container with
    /// one replica needs no index.
    pub async fn open_log(
        &self,
        text: &str,
        follow: bool,
    ) -> Result<ConsoleSession, ReplicaSessionError> {
        let (node, replica) = self.find_replica(text)?;
        let order = |console| FromCentral::ContainerLogs(LogsOrder { console, replica, follow });
        Ok(self.links.open_console(node, order).await?)
    }

    /// Starts a program in a running replica. The order is recorded before the node begins.
    pub async fn open_exec(
        &self,
        text: &str,
        request: ReplicaExecRequest,
        audit: &AuditContext,
    ) -> Result<ConsoleSession, ReplicaSessionError> {
        let ReplicaExecRequest { argv, terminal } = request;
        let (node, replica) = self.find_replica(text)?;
        check_argv(&argv)
            .map_err(|source| ReplicaSessionError::Argv { replica: replica.clone(), source })?;
        self.links.check_console(node)?;
        let begin = format!("an admin runs {}", argv.first().map_or("", String::as_str));
        let begin = replica_event(&replica, Some(node), audit, &begin, self.env.now());
        self.env.store_event(begin).await?;
        let order = |console| {
            let shell = terminal.order(console);
            let replica = replica.clone();
            FromCentral::ContainerExec(ExecOrder { replica, argv, shell })
        };
        let opened = self.links.open_console(node, order).await;
        if let Err(error) = &opened {
            self.exec_ended(text, &error.to_string(), audit).await;
        }
        Ok(opened?)
    }

    /// Records the end of a program in a replica. `why` may contain words of the node.
    pub async fn exec_ended(&self, text: &str, why: &str, audit: &AuditContext) {
        // The replica may have moved or be deleted meanwhile.
        let Ok((node, replica)) = self.find_replica(text) else { return };
        let detail = end_detail(why);
        let end = replica_event(&replica, Some(node), audit, &detail, self.env.now());
        self.env.record(end).await;
    }

    /// Finds a replica by its ID, or the only one of a container by its name. The ID is first: a
    /// container on record may be named like a replica of another one.
    fn find_replica(&self, text: &str) -> Result<(NodeId, ReplicaId), ReplicaSessionError> {
        let id = match (self.container(text), text.parse::<ReplicaId>()) {
            (_, Ok(id)) if self.has_replica(&id) => id,
            (Ok(container), _) if container.replicas.len() == 1 => container.replica_id(0),
            (Ok(container), _) => {
                let count = container.replicas.len();
                return Err(ReplicaSessionError::Several { name: text.to_owned(), count });
            }
            (Err(_), Ok(id)) => id,
            (Err(error), Err(_)) => return Err(error.into()),
        };
        let container = self.container(id.container.as_str())?;
        let Some(replica) = container.replicas.get(usize::from(id.index)) else {
            return Err(ReplicaSessionError::NoReplica(id));
        };
        match replica.node() {
            Some(node) => Ok((node, id)),
            None => Err(ReplicaSessionError::Unplaced(id)),
        }
    }

    fn has_replica(&self, id: &ReplicaId) -> bool {
        let container = self.container(id.container.as_str());
        container.is_ok_and(|container| usize::from(id.index) < container.replicas.len())
    }
}
