//! The work that an order affects: the VMs with their disks, the replicas of containers and the
//! tasks of its nodes.

use super::{Chosen, count_text};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    html::display_text,
};
use maud::{Markup, html};
use meshd_api::{ReplicaView, TaskView, VmView, routes as api};
use meshd_model::work::task::TaskState;
use meshd_types::NodeId;
use serde::Deserialize;
use std::collections::BTreeSet;

/// Maximum number of VMs, of replicas and of tasks that a page lists for one node.
const MAX_LISTED: usize = 200;

/// The work of the nodes of an order.
#[derive(Default)]
pub(super) struct BlastRadius {
    vms: Vec<VmView>,
    replicas: Vec<ReplicaView>,
    tasks: Vec<TaskView>,
}

/// The selected field of a container.
#[derive(Deserialize)]
struct ReplicasOf {
    replicas: Vec<ReplicaView>,
}

/// Returns the work of nodes.
pub(super) async fn load(
    client: &ApiClient,
    nodes: &[Chosen<'_>],
) -> Result<BlastRadius, ApiError> {
    let chosen: BTreeSet<NodeId> = nodes.iter().map(|node| node.target.id).collect();
    let is_chosen = |id: NodeId| chosen.contains(&id);
    // A site keeps many more tasks that have ended.
    let open = TaskState::ALL.into_iter().filter(|state| !state.is_final());
    let open: Vec<&str> = open.map(TaskState::as_str).collect();
    let mut vms = api::LIST_VMS.path([]);
    let mut containers = api::LIST_CONTAINERS.path([]).with("fields", "replicas");
    let mut tasks = api::LIST_TASKS.path([]).with("state", open.join(","));
    if let [node] = nodes {
        vms = vms.with("node", node.target.id);
        containers = containers.with("node", node.target.id);
        tasks = tasks.with("node", node.target.id);
    }
    let mut vms = client.get(vms).await?;
    let mut tasks = client.get(tasks).await?;
    let containers: Vec<ReplicasOf> = client.get_fields(containers).await?;
    let replicas = containers.into_iter().flat_map(|it| it.replicas);
    let replicas = replicas.filter(|it| it.node.is_some_and(is_chosen) && it.may_run()).collect();
    vms.retain(|vm| vm.node.is_some_and(is_chosen));
    tasks.retain(|task| task.nodes.iter().any(|member| member.claimed && is_chosen(member.node)));
    Ok(BlastRadius { vms, replicas, tasks })
}

impl BlastRadius {
    /// Renders the numbers of nodes, VMs, tasks and disks, and of replicas if there are any.
    pub(super) fn summary(&self, nodes: usize) -> Markup {
        let disks: usize = self.vms.iter().map(|vm| vm.wiped_disks().len()).sum();
        let is_idle = self.vms.is_empty() && self.replicas.is_empty() && self.tasks.is_empty();
        let count = |number: usize, one: &str| match number {
            1 => format!("1 {one}"),
            number => format!("{number} {one}s"),
        };
        html! {
            div class=(if is_idle { "alert idle" } else { "alert warn" }) {
                strong {
                    "Affected: " (count_text(nodes)) ", " (count(self.vms.len(), "VM")) ", "
                    @if !self.replicas.is_empty() { (count(self.replicas.len(), "replica")) ", " }
                    (count(self.tasks.len(), "task")) ", " (count(disks, "disk"))
                }
                @if is_idle { p { "No VM, no container and no task runs there." } }
            }
        }
    }

    /// Renders the work of one node.
    pub(super) fn of_node(&self, id: NodeId) -> Markup {
        let vms: Vec<_> = self.vms.iter().filter(|vm| vm.node == Some(id)).collect();
        let is_member =
            |task: &&TaskView| task.nodes.iter().any(|member| member.claimed && member.node == id);
        let tasks: Vec<_> = self.tasks.iter().filter(is_member).collect();
        let replicas: Vec<_> = self.replicas.iter().filter(|it| it.node == Some(id)).collect();
        if vms.is_empty() && replicas.is_empty() && tasks.is_empty() {
            return Markup::default();
        }
        html! { ul {
            @for vm in vms.iter().take(MAX_LISTED) {
                li {
                    "VM " a href=(format!("{PREFIX}/vms/{}", vm.uuid)) { (vm.name) } " (" (vm.state.as_str()) ")"
                    @let disks = vm.wiped_disks();
                    @if !disks.is_empty() { ", with disks " (display_text(&disks.join(", "))) }
                }
            }
            @for replica in replicas.iter().take(MAX_LISTED) {
                li {
                    "replica " a href=(format!("{PREFIX}/containers/{}", encoded(replica.id.container.as_str()))) { (replica.id) }
                    " (" (replica.phase.as_str()) ")"
                }
            }
            @for task in tasks.iter().take(MAX_LISTED) {
                li {
                    "task " a href=(format!("{PREFIX}/tasks/{}", task.id)) { (task.id) }
                    " (" (display_text(&task.argv.join(" "))) ")"
                }
            }
        } }
    }
}
