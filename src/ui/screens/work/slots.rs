//! Slots: units with their disk and fabric device.

use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    form::Fields,
    html::{self, Page, code, display_text, maybe, plain},
    names::NodeNames,
    request_checks::{fields, redirect},
    screens::{Answer, actions},
};
use axum::{
    body::Body,
    extract::Path,
    http::{HeaderMap, Request},
};
use maud::{Markup, html};
use meshd_api::{
    ApproveSlot, SlotView,
    routes::{self as api, UntypedPost},
};
use meshd_model::work::SlotState;
use std::{fmt::Display, str::FromStr};

pub(in crate::screens) fn slot_table(
    slots: &[SlotView],
    names: &NodeNames,
    may_order: bool,
) -> Markup {
    let row = |slot: &SlotView| {
        let functions = slot
            .functions
            .iter()
            .map(|(address, id)| format!("{address} ({id})"))
            .collect::<Vec<_>>();
        vec![
            names.link(slot.id.node),
            code(&slot.id.unit),
            html! { (slot.state.as_str()) @if !slot.reason.is_empty() { div.quiet { (display_text(&slot.reason)) } } },
            plain(functions.join(" ")),
            maybe(slot.numa),
            device(slot.disk.as_ref(), slot.near_disk.as_deref()),
            device(slot.fabric.as_ref(), slot.near_fabric.as_deref()),
            html! { (maybe(slot.mac)) " " (maybe(slot.address)) },
            plain(&slot.mismatch),
            if may_order { orders(slot) } else { Markup::default() },
        ]
    };
    let rows: Vec<_> = slots.iter().map(row).collect();
    html::table(
        &[
            "Node",
            "Unit",
            "State",
            "Functions",
            "NUMA node",
            "Disk",
            "Fabric",
            "NIC",
            "Mismatch",
            "Actions",
        ],
        &rows,
        "No node reports a slot.",
    )
}

/// Renders the device of a slot; without one, the nearest candidate.
fn device<T: ToString>(own: Option<&T>, nearest: Option<&str>) -> Markup {
    match (own, nearest) {
        (Some(own), _) => plain(own.to_string()),
        (None, Some(nearest)) => html! { span.quiet { "nearest: " (display_text(nearest)) } },
        (None, None) => Markup::default(),
    }
}

fn orders(slot: &SlotView) -> Markup {
    let to = |verb: &str| {
        format!("{PREFIX}/slots/{}/{}/{verb}", slot.id.node, encoded(&slot.id.unit.to_string()))
    };
    let field = |name: &str, label: &str, value: &str, example: &str| {
        let id = format!("{name}-{}", slot.id);
        html! {
            label for=(id) { (label) }
            input id=(id) name=(name) value=(display_text(value)) placeholder=(example) maxlength="200";
        }
    };
    let text = |own: Option<String>, nearest: Option<&str>| {
        own.unwrap_or_else(|| nearest.map_or("", |_| "nearest").to_owned())
    };
    let disk = text(
        slot.disk.as_ref().map(ToString::to_string),
        slot.near_disk.as_deref().filter(|_| !slot.approved),
    );
    let fabric = text(slot.fabric.clone(), slot.near_fabric.as_deref().filter(|_| !slot.approved));
    html! {
        div.actions {
            @if slot.state == SlotState::Disabled {
                form.inline method="post" action=(to("enable")) { button { "Enable" } }
            } @else {
                form.inline method="post" action=(to("disable")) { button title="It is not allocated until it is enabled" { "Disable" } }
            }
            @if slot.state == SlotState::CleanupBlocked {
                form.inline method="post" action=(to("release")) { button { "Retry cleanup" } }
            }
            details {
                summary { "Approve…" }
                form.stack method="post" action=(to("approve")) {
                    p { "Its present state is acknowledged. Devices of the slot:" }
                    (field("disk", "Disk: wwid, serial number, nearest, or empty", &disk, "nearest"))
                    (field("fabric", "Fabric device, nearest, or empty", &fabric, "nearest"))
                    (field("mac", "MAC address of its NIC, or empty", &text(slot.mac.map(|mac| mac.to_string()), None), "52:54:00:12:34:56"))
                    (field("address", "IPv4 address of its NIC, or empty", &text(slot.address.map(|it| it.to_string()), None), "10.77.0.210"))
                    (field("reason", "Reason, for the audit log", "", ""))
                    button.main { "Approve " (slot.id) }
                }
            }
        }
    }
}

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let slots =
        client.get(api::LIST_SLOTS.path([])).await.map_err(|error| client.failed(&error))?;
    let names = client.node_names().await.map_err(|error| client.failed(&error))?;
    let table = slot_table(&slots, &names, actions::may_order(&client));
    let content = html! { h1 { "Slots" } div id="rows" data-live { (table) } };
    Ok(Page { client: &client, title: "Slots".to_owned(), nav_path: "/slots", content }
        .answer(&headers))
}

/// Parses an optional field.
fn optional<T: FromStr<Err: Display>>(fields: &Fields, name: &str) -> Result<Option<T>, ApiError> {
    let text = fields.text(name);
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| {
        let message = format!("{name}: {error}");
        ApiError::bad_request(message, "go back and correct the field")
    })
}

fn order_of(node: &str, unit: &str, verb: &str, fields: &Fields) -> Result<UntypedPost, ApiError> {
    match verb {
        "disable" => Ok(api::DISABLE_SLOT.path([&node, &unit]).with_body(&())),
        "enable" => Ok(api::ENABLE_SLOT.path([&node, &unit]).with_body(&())),
        "release" => Ok(api::RELEASE_SLOT.path([&node, &unit]).with_body(&())),
        "approve" => {
            let approval = ApproveSlot {
                disk: optional(fields, "disk")?,
                fabric: optional(fields, "fabric")?,
                mac: optional(fields, "mac")?,
                address: optional(fields, "address")?,
            };
            Ok(api::APPROVE_SLOT.path([&node, &unit]).with_body(&approval))
        }
        _ => Err(ApiError::no_such_action()),
    }
}

pub(crate) async fn order(
    client: ApiClient,
    Path((node, unit, verb)): Path<(String, String, String)>,
    request: Request<Body>,
) -> Answer {
    let fields = fields(request).await?;
    let failed = |error| client.failed(&error);
    let order = order_of(&node, &unit, &verb, &fields).map_err(failed)?;
    client.order_untyped(order, &actions::notes(&fields)).await.map_err(failed)?;
    Ok(redirect(&format!("{PREFIX}/slots")))
}
