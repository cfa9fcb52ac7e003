//! The menu of a node: the orders that fit its phase, in groups.

use super::{catalog::ACTIONS, force_box, target};
use crate::{
    PREFIX,
    html::{self, display_text},
};
use maud::{Markup, html};
use meshd_api::{NodeDetail, NodeView};
use meshd_model::fleet::{Phase, PhaseChange};
use meshd_trust::Role;

/// Groups of the menu, with the orders of the API.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Admission", &["approve", "reject", "release", "quarantine"]),
    ("Service", &["resume", "drain", "maintenance"]),
    ("Boot", &["reboot", "power", "assign-profile"]),
    ("Record", &["label", "vars", "remove"]),
];

/// True if an order has an effect on a node in its phase. meshd checks each order itself.
fn fits(order: &str, node: &NodeView) -> bool {
    let may = |change| node.phase.apply(change).is_ok();
    match order {
        // An approval also acknowledges alarms.
        "approve" => may(PhaseChange::Approve) || !node.conditions.is_empty(),
        "reject" => node.phase != Phase::Rejected && may(PhaseChange::Reject),
        "release" => may(PhaseChange::Release),
        "quarantine" => {
            !matches!(node.phase, Phase::Quarantined | Phase::Rejected | Phase::Removed)
        }
        "resume" => may(PhaseChange::Resume),
        "drain" => {
            let is_out = matches!(node.phase, Phase::Draining | Phase::Maintenance);
            // An offline node drains when it returns.
            node.phase == Phase::Offline || !is_out && may(PhaseChange::Drain)
        }
        "maintenance" => node.phase != Phase::Maintenance && may(PhaseChange::Drained),
        "reboot" | "doctor" => node.phase.has_link(),
        _ => node.phase != Phase::Removed,
    }
}

/// Renders the menu of one node.
pub(in crate::screens) fn menu(detail: &NodeDetail, role: Role) -> Markup {
    let node = &detail.node;
    html! {
        details.menu {
            summary { "Actions" }
            div.panel {
                form method="post" action=(format!("{PREFIX}/actions/preview")) {
                    // The input is live, because an order names the revision that the page shows.
                    span id="target" data-live { input type="hidden" name="node" value=(target(node)); }
                    @for (title, orders) in GROUPS { (group(title, orders, node)) }
                }
                (forms(detail, role))
            }
        }
    }
}

fn group(title: &str, orders: &[&str], node: &NodeView) -> Markup {
    let buttons: Vec<_> = orders
        .iter()
        .filter(|order| fits(order, node))
        .filter_map(|order| ACTIONS.iter().find(|action| action.word() == *order))
        .collect();
    html! {
        @if !buttons.is_empty() {
            fieldset { legend { (title) }
                @for action in buttons {
                    @let to = format!("{PREFIX}/inbox/approve");
                    @let is_new = action.word() == "approve" && node.phase == Phase::Discovered;
                    button name="action" value=(action.word()) formaction=[is_new.then_some(to)] { (action.title) "…" }
                }
            }
        }
    }
}

/// Renders the orders that apply to exactly one node.
fn forms(detail: &NodeDetail, role: Role) -> Markup {
    let node = &detail.node;
    let to = |verb: &str| format!("{PREFIX}/nodes/{}/{verb}", node.id);
    html! {
        fieldset { legend { "Next boot" }
            form.inline method="post" action=(to("pin")) {
                @if node.pinned.is_some() {
                    input type="hidden" name="off" value="1";
                    button { "Unpin" }
                } @else {
                    button title="It boots its running generation until it is unpinned" { "Pin running generation" }
                }
            }
            (boot_once(detail, &to("boot-once")))
        }
        @if fits("doctor", node) {
            fieldset { legend { "Checks" }
                form.inline method="post" action=(to("doctor")) { button { "Run readiness checks" } }
            }
        }
        fieldset { legend { "Name" }
            form.inline method="post" action=(to("rename")) {
                label.hidden for="name" { "New name" }
                input id="name" name="name" value=(display_text(&node.name)) required maxlength="63";
                button { "Rename" }
            }
        }
        fieldset { legend { "Hardware" }
            (details_form(&to("accept-nic"), "Accept NIC", "The node is recognised by this NIC, too.", &html! {
                label for="mac" { "MAC address" }
                input id="mac" name="mac" required maxlength="17" placeholder="52:54:00:12:34:56";
            }, false))
            (details_form(&to("replace"), "Replace hardware", "Another machine takes over name, profile, variables and labels of this node.", &html! {
                label for="new" { "ID or name of the new machine" }
                input id="new" name="new" required maxlength="63";
            }, true))
            (details_form(&to("fence"), "Fence", "Its VMs start on other nodes. Power the node off first, or its VMs run twice.", &html! {
                label for="confirm" { "Name of this node, to confirm that it is off" }
                input id="confirm" name="confirm" required maxlength="63" autocomplete="off";
            }, true))
            @if role >= Role::Admin {
                (details_form(&to("revoke"), "Revoke certificate", "The node loses its link and its certificate now, until it boots again.", &Markup::default(), true))
            }
        }
    }
}

/// Renders a collapsed form with the effect of the order, its input and the reason.
fn details_form(
    to: &str,
    title: &str,
    effect: &str,
    inputs: &Markup,
    is_dangerous: bool,
) -> Markup {
    let id = format!("reason-{}", to.rsplit('/').next().unwrap_or_default());
    html! {
        details {
            summary { (title) "…" }
            form.stack method="post" action=(to) {
                p { (effect) }
                (inputs)
                (html::reason_input(&id))
                button class=(if is_dangerous { "danger" } else { "main" }) { (title) }
            }
        }
    }
}

/// Renders the form for the next boot only, or the form that cancels it.
fn boot_once(detail: &NodeDetail, to: &str) -> Markup {
    html! {
        @if detail.boot_override.is_some() {
            form.inline method="post" action=(to) {
                input type="hidden" name="clear" value="1";
                button { "Clear boot once" }
            }
        } @else {
            (details_form(to, "Boot once", "The order changes only the next boot; the node keeps its profile.", &html! {
                label for="once-profile" { "Profile, empty for its own" }
                input id="once-profile" name="profile" maxlength="63";
                label for="once-args" { "Additional kernel arguments; -NAME removes one" }
                input id="once-args" name="kernel_args" maxlength="500" placeholder="debug -quiet";
                (force_box())
            }, false))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn menu_names_each_order_once_and_fits_the_phase() {
        let mut orders: Vec<_> = GROUPS.iter().flat_map(|(_, orders)| *orders).collect();
        assert!(orders.iter().all(|order| ACTIONS.iter().any(|action| action.word() == **order)));
        orders.sort_unstable();
        orders.dedup();
        // Pin, boot once and the readiness checks have separate forms.
        assert_eq!(orders.len() + 3, ACTIONS.len());
    }
}
