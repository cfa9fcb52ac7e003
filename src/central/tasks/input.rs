//! The standard input of a task: connects the caller that ordered the task to its node.

use super::{Tasks, error::TaskError};
use crate::links::{ConnectError, ConsoleSession};
use meshd_model::work::task::{InputOwner, Task};
use meshd_proto::{
    FromCentral,
    task::{InputOrder, TaskUser},
};
use meshd_trust::Role;
use meshd_types::{NodeId, TaskId, failpoint};

/// Why the standard input of a task is not connected.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error("cannot connect the input of task {0}: it was started without one")]
    NoInput(TaskId),
    #[error("cannot connect the input of task {id}: another caller ordered it, as {owner}")]
    Foreign { id: TaskId, owner: String },
    #[error("cannot connect the input of task {id}: it is {state}")]
    Ended { id: TaskId, state: &'static str },
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

meshd_types::hints!(InputError {
    InputError::NoInput(_) => "start it with `meshd node exec --stdin`";
    InputError::Foreign { .. } => "start a task of your own; a token that was created again is another caller";
    InputError::Ended { id, .. } => "meshd task show {id}";
    @source InputError::Task(source) => source;
    @source InputError::Connect(source) => source;
});

impl Tasks {
    /// Connects a caller to the standard input of a task that this caller ordered. Whoever writes
    /// the input of a shell runs programs as its user.
    pub async fn open_input(
        &self,
        id: TaskId,
        caller: InputOwner,
        role: Role,
    ) -> Result<ConsoleSession, InputError> {
        let task = self.task_record(id)?;
        let node = input_node(&task, caller, role)?;
        let order = |console| FromCentral::TaskInput(InputOrder { console, task: id });
        Ok(self.links.open_console(node, order).await?)
    }
}

fn input_node(task: &Task, caller: InputOwner, role: Role) -> Result<NodeId, InputError> {
    let id = task.id;
    if !task.spec.has_input {
        return Err(InputError::NoInput(id));
    }
    let is_own = task.input_owner == Some(caller)
        && (task.spec.user != TaskUser::Root || role >= Role::Admin);
    if !is_own && failpoint::defends("task-input-owner") {
        return Err(InputError::Foreign { id, owner: task.owner.clone() });
    }
    let node = task.members.first().filter(|_| task.end.is_none()).map(|member| member.node);
    node.ok_or(InputError::Ended { id, state: task.state.as_str() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_model::work::task::{Launcher, Member, TaskSpec};
    use meshd_types::{BootSessionId, Timestamp};

    #[test]
    fn input_of_a_task_is_connected_only_to_its_caller() {
        let spec = TaskSpec {
            group: "pair".parse().expect("a name"),
            argv: vec!["/bin/sh".to_owned()],
            nodes: 1,
            ranks_per_node: 1,
            launcher: Launcher::None,
            user: TaskUser::Root,
            timeout_s: None,
            has_input: true,
        };
        let node = "0a0b0c0d".parse().expect("a node");
        let member = Member::claimed(node, BootSessionId([1; 12]), [10, 0, 0, 1].into());
        let [ci, again, other] =
            ["token:ci 01", "token:ci 02", "token:other 03"].map(InputOwner::of);
        let at = Timestamp::from_millis(0);
        let mut task = Task::claim(TaskId([1; 4]), spec, "token:ci".to_owned(), vec![member], at);
        let refused = |task: &Task, caller, role| {
            matches!(input_node(task, caller, role), Err(InputError::Foreign { .. }))
        };
        assert!(refused(&task, ci, Role::Admin), "a record of an earlier meshd has no caller");
        task.input_owner = Some(ci);
        assert_eq!(input_node(&task, ci, Role::Admin).ok(), Some(node));
        assert!(refused(&task, ci, Role::Operator), "the program runs as root");
        assert!(refused(&task, other, Role::Admin));
        assert!(refused(&task, again, Role::Admin), "the name of the token is not the caller");
        task.spec.has_input = false;
        let none = input_node(&task, ci, Role::Admin);
        assert!(matches!(none, Err(InputError::NoInput(_))));
    }
}
