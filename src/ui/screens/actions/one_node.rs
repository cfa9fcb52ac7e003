//! Orders that apply to exactly one node.

use super::{Answer, bar, boot_once as once, force_box, notes, target};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    form::Fields,
    html::{self, display_text},
    request_checks::{fields, redirect},
};
use axum::{body::Body, extract::Path, http::Request};
use maud::{Markup, html};
use meshd_api::{
    AcceptNic, Fence, NodeDetail, Pin, Rename, Replace,
    routes::{self as api, UntypedPost},
};
use meshd_trust::Role;

/// Returns the order of a verb.
fn order_of(node: &str, verb: &str, fields: &Fields) -> Result<UntypedPost, ApiError> {
    let text = |name| fields.text(name).to_owned();
    Ok(match verb {
        "rename" => api::RENAME_NODE.path([&node]).with_body(&Rename { name: text("name") }),
        "pin" => api::PIN_NODE
            .path([&node])
            .with_body(&Pin { generation: None, off: fields.is_ticked("off") }),
        "doctor" => api::RUN_NODE_CHECKS.path([&node]).with_body(&()),
        "revoke" => api::REVOKE_NODE_CERTIFICATE.path([&node]).with_body(&()),
        "boot-once" => api::SET_NODE_BOOT_ONCE.path([&node]).with_body(&once(fields)),
        "accept-nic" => {
            let mac = fields.text("mac").parse().map_err(|_| {
                let (message, hint) = ("invalid MAC address", "write it like 52:54:00:12:34:56");
                ApiError::bad_request(message, hint)
            })?;
            api::ACCEPT_NODE_NIC.path([&node]).with_body(&AcceptNic { mac })
        }
        "replace" => api::REPLACE_NODE.path([&node]).with_body(&Replace { new: text("new") }),
        "fence" => api::FENCE_NODE.path([&node]).with_body(&Fence { confirm: text("confirm") }),
        _ => return Err(ApiError::no_such_action()),
    })
}

/// Sends the order, and redirects to the page of the node.
pub(crate) async fn run(
    client: ApiClient,
    Path((node, verb)): Path<(String, String)>,
    request: Request<Body>,
) -> Answer {
    let fields = fields(request).await?;
    let failed = |error| client.failed(&error);
    let order = order_of(&node, &verb, &fields).map_err(failed)?;
    let done = client.order_untyped(order, &notes(&fields)).await.map_err(failed)?;
    // A replacement moves the identity to another node.
    let node = if verb == "replace" { done["node"]["id"].as_str().unwrap_or(&node) } else { &node };
    Ok(redirect(&format!("{PREFIX}/nodes/{}?done={}", encoded(node), encoded(&verb))))
}

/// Renders the forms for one node: all actions, and the orders that apply to exactly one node.
pub(in crate::screens) fn forms(detail: &NodeDetail, role: Role) -> Markup {
    let node = &detail.node;
    let to = |verb: &str| format!("{PREFIX}/nodes/{}/{verb}", node.id);
    html! {
        form method="post" action=(format!("{PREFIX}/actions/preview")) {
            // The input is live, because an order names the revision that the page shows.
            span id="target" data-live { input type="hidden" name="node" value=(target(node)); }
            (bar(&["pin", "boot-once", "doctor"]))
        }
        div.actions {
            form.inline method="post" action=(to("rename")) {
                label.hidden for="name" { "New name" }
                input id="name" name="name" value=(display_text(&node.name)) required maxlength="63";
                button { "Rename" }
            }
            form.inline method="post" action=(to("pin")) {
                @if node.pinned.is_some() {
                    input type="hidden" name="off" value="1";
                    button { "Unpin" }
                } @else {
                    button title="It boots its running generation until it is unpinned" { "Pin running generation" }
                }
            }
            form.inline method="post" action=(to("doctor")) { button { "Run readiness checks" } }
            (boot_once(detail, &to("boot-once")))
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
