//! Orders that apply to exactly one node.

use super::{Answer, inputs::boot_once as once, notes};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    form::Fields,
    request_checks::{fields, redirect},
};
use axum::{body::Body, extract::Path, http::Request};
use meshd_api::{
    AcceptNic, Fence, Pin, Rename, Replace,
    routes::{self as api, UntypedPost},
};

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
                let message = "invalid MAC address";
                let hint = "write it like 52:54:00:12:34:56";
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
