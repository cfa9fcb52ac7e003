//! The orders that apply to several nodes.

use crate::client::ApiError;
use meshd_api::routes::{self as api, BulkPost};

/// Input of an action in addition to its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActionInput {
    Nothing,
    /// Checkbox: the node was moved to another port.
    Moved,
    Profile,
    Drain,
    /// What the BMC does.
    Power,
    /// `key=value` and `key-`, separated by blanks.
    Labels,
    /// `key=value` and `key-`, one per line.
    Variables,
    /// Checkbox: unpin instead.
    Pin,
    /// Profile and kernel arguments of the next boot.
    Once,
}

/// An order that applies to several nodes.
pub(super) struct Action {
    pub(super) route: BulkPost,
    pub(super) title: &'static str,
    /// Effect of the action, shown before confirmation.
    pub(super) effect: &'static str,
    pub(super) input: ActionInput,
    /// True if the action can end work or lose data.
    pub(super) is_dangerous: bool,
}

impl Action {
    /// True if the action may take devices from running VMs or end work: it is refused unless it is
    /// forced.
    pub(super) fn may_cost_work(&self) -> bool {
        self.is_dangerous || matches!(self.input, ActionInput::Profile | ActionInput::Once)
    }

    /// As the API and the command line call it.
    pub(super) fn word(&self) -> String {
        self.route.verb().to_string()
    }
}

const fn action(
    route: BulkPost,
    title: &'static str,
    input: ActionInput,
    effect: &'static str,
) -> Action {
    Action { route, title, effect, input, is_dangerous: false }
}

const fn dangerous(
    route: BulkPost,
    title: &'static str,
    input: ActionInput,
    effect: &'static str,
) -> Action {
    Action { route, title, effect, input, is_dangerous: true }
}

/// All actions, in the order of a node's lifecycle.
pub(super) const ACTIONS: [Action; 16] = [
    action(
        api::APPROVE_NODES,
        "Approve",
        ActionInput::Moved,
        "Takes effect immediately: a waiting machine receives its credentials now. Alarms of a known node are acknowledged.",
    ),
    dangerous(
        api::REJECT_NODES,
        "Reject",
        ActionInput::Nothing,
        "Boots of the machine are refused.",
    ),
    action(
        api::ASSIGN_NODES_PROFILE,
        "Assign profile",
        ActionInput::Profile,
        "The node boots this profile from its next boot on.",
    ),
    dangerous(
        api::REBOOT_NODES,
        "Reboot",
        ActionInput::Nothing,
        "The node reboots now. The order is refused while VMs or tasks run on it, unless it is forced.",
    ),
    dangerous(
        api::POWER_NODES,
        "Power",
        ActionInput::Power,
        "The BMC of the node switches its power. The order is done when meshd has seen the effect.",
    ),
    dangerous(
        api::DRAIN_NODES,
        "Drain",
        ActionInput::Drain,
        "The node takes no new work, and enters maintenance when its work has ended.",
    ),
    dangerous(
        api::START_NODES_MAINTENANCE,
        "Maintenance",
        ActionInput::Nothing,
        "The node leaves service now.",
    ),
    action(api::RESUME_NODES, "Resume", ActionInput::Nothing, "The node returns to service."),
    action(api::LABEL_NODES, "Label", ActionInput::Labels, "Labels are set and removed."),
    action(
        api::CHANGE_NODES_VARIABLES,
        "Set variables",
        ActionInput::Variables,
        "Overlays read the variables when the next boot is rendered.",
    ),
    action(
        api::SET_NODES_BOOT_ONCE,
        "Boot once",
        ActionInput::Once,
        "The order changes only the next boot; the node keeps its profile.",
    ),
    action(
        api::PIN_NODES,
        "Pin",
        ActionInput::Pin,
        "The node boots its running generation, regardless of its profile, until it is unpinned.",
    ),
    action(
        api::RUN_NODES_CHECKS,
        "Run readiness checks",
        ActionInput::Nothing,
        "The agent of the node runs its checks now.",
    ),
    dangerous(
        api::QUARANTINE_NODES,
        "Quarantine",
        ActionInput::Nothing,
        "The node has no link until it is released.",
    ),
    action(api::RELEASE_NODES, "Release", ActionInput::Nothing, "The node may boot again."),
    dangerous(
        api::REMOVE_NODES,
        "Remove",
        ActionInput::Nothing,
        "The node loses its link, and its record is deleted.",
    ),
];

pub(super) fn find(word: &str) -> Result<&'static Action, ApiError> {
    let action = ACTIONS.iter().find(|action| action.word() == word);
    action.ok_or_else(|| {
        ApiError::bad_request("choose an action", "go back and press one of the buttons")
    })
}
