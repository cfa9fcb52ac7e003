//! Filters and order of VMs and tasks.

use super::{
    page::{OrderKey, time_key},
    parameters::{ListSpec, ParameterError, Parameters},
    text::Needle,
};
use meshd_api::{TaskView, VmView};
use meshd_model::work::{VmPhase, task::TaskState};
use meshd_types::NodeId;
use std::borrow::Cow;

/// Fields and orders of `GET /v1/vms`.
pub(crate) const VMS: ListSpec = ListSpec {
    fields: &[
        "name",
        "uuid",
        "state",
        "desired_state",
        "node",
        "since",
        "settled",
        "restarts",
        "failure",
        "fetching",
        "ready_check",
        "ready",
        "obstacle",
        "vcpus",
        "memory",
        "units",
        "unit_selectors",
        "numa_node",
        "numa_mismatch",
        "volumes",
        "nics",
        "on_node_loss",
        "start",
        "created_at",
    ],
    sorts: &["name", "uuid", "state", "node", "created_at"],
};

/// Fields and orders of `GET /v1/tasks`.
pub(crate) const TASKS: ListSpec = ListSpec {
    fields: &[
        "id",
        "state",
        "cause",
        "detail",
        "node",
        "code",
        "group",
        "argv",
        "ranks_per_node",
        "launcher",
        "user",
        "timeout_s",
        "owner",
        "created_at",
        "started_at",
        "ended_at",
        "nodes",
    ],
    sorts: &["created_at", "id", "state", "group"],
};

/// Filter of a VM list.
#[derive(Clone, Debug, Default)]
pub(crate) struct VmFilter {
    states: Option<Vec<&'static str>>,
    /// Node that runs the VM.
    pub(crate) node: Option<NodeId>,
    text: Option<Needle>,
}

impl VmFilter {
    /// Reads all filters except the node, because only the central node can resolve its name.
    pub(crate) fn read(parameters: &Parameters) -> Result<Self, ParameterError> {
        let states = parameters.words("state", &VmPhase::ALL.map(VmPhase::as_str))?;
        Ok(VmFilter { states, node: None, text: parameters.needle()? })
    }

    pub(crate) fn takes(&self, vm: &VmView) -> bool {
        self.states.as_ref().is_none_or(|states| states.contains(&vm.state.as_str()))
            && self.node.is_none_or(|node| vm.node == Some(node))
            && self
                .text
                .as_ref()
                .is_none_or(|text| vm_texts(vm).any(|(_, found)| text.is_in(&found)))
    }
}

/// Returns the searchable texts of a VM: the name of the field, and its text.
pub(crate) fn vm_texts(vm: &VmView) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    let names =
        [("name", Cow::Borrowed(vm.name.as_str())), ("uuid", Cow::Owned(vm.uuid.to_string()))];
    let nics = vm.nics.iter().flat_map(|nic| {
        let address = nic.address.map(|address| ("address", Cow::Owned(address.to_string())));
        std::iter::once(("mac", Cow::Owned(nic.mac.to_string()))).chain(address)
    });
    names.into_iter().chain(nics)
}

/// Returns the sort key of a VM in an order of [`VMS`].
pub(crate) fn vm_key(vm: &VmView, sort: &str) -> OrderKey {
    let node = vm.node.map(|node| node.to_string()).unwrap_or_default();
    // Two nodes may have a VM with one UUID, of which one VM is not on record.
    let id = format!("{} {node} {}", vm.uuid, vm.desired_state.is_some());
    let key = match sort {
        "name" => vm.name.to_string(),
        "state" => vm.state.as_str().to_owned(),
        "node" => node,
        "created_at" => vm.created_at.map(time_key).unwrap_or_default(),
        _ => String::new(),
    };
    (key, id)
}

/// Filter of a task list.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskFilter {
    states: Option<Vec<&'static str>>,
    group: Option<String>,
    /// Node that runs or ran the task.
    pub(crate) node: Option<NodeId>,
    text: Option<Needle>,
}

impl TaskFilter {
    /// Reads all filters except the node, because only the central node can resolve its name.
    pub(crate) fn read(parameters: &Parameters) -> Result<Self, ParameterError> {
        let states = parameters.words("state", &TaskState::ALL.map(TaskState::as_str))?;
        let group = parameters.get("group").map(str::to_owned);
        Ok(TaskFilter { states, group, node: None, text: parameters.needle()? })
    }

    pub(crate) fn takes(&self, task: &TaskView) -> bool {
        self.states.as_ref().is_none_or(|states| states.contains(&task.state.as_str()))
            && self.group.as_ref().is_none_or(|group| *group == task.group)
            && self.node.is_none_or(|node| task.nodes.iter().any(|member| member.node == node))
            && self
                .text
                .as_ref()
                .is_none_or(|text| task_texts(task).any(|(_, found)| text.is_in(&found)))
    }
}

/// Returns the searchable texts of a task: the name of the field, and its text.
pub(crate) fn task_texts(task: &TaskView) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    let words =
        [("id", Cow::Owned(task.id.to_string())), ("group", Cow::Borrowed(task.group.as_str()))];
    words.into_iter().chain(task.argv.iter().map(|word| ("argv", Cow::Borrowed(word.as_str()))))
}

/// Returns the sort key of a task in an order of [`TASKS`].
pub(crate) fn task_key(task: &TaskView, sort: &str) -> OrderKey {
    let key = match sort {
        "created_at" => time_key(task.created_at),
        "state" => task.state.as_str().to_owned(),
        "group" => task.group.clone(),
        _ => String::new(),
    };
    (key, task.id.to_string())
}
