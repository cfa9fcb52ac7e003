//! Orders about a container. An order that ends processes is confirmed on a page that names them.

use super::page_of;
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    html::{self, Page},
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
use meshd_api::{ContainerView, routes as api};

/// An order that ends processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Stop,
    Delete,
}

impl Ending {
    fn of(verb: &str) -> Result<Self, ApiError> {
        match verb {
            "stop" => Ok(Ending::Stop),
            "delete" => Ok(Ending::Delete),
            _ => Err(ApiError::no_such_action()),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Ending::Stop => "stop",
            Ending::Delete => "delete",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Ending::Stop => "Stop",
            Ending::Delete => "Delete",
        }
    }

    /// Describes what follows after the grace time.
    fn effect(self) -> &'static str {
        match self {
            Ending::Stop => "The nodes keep the logs. Start runs the container again.",
            Ending::Delete => {
                "The nodes delete the logs, and the record is deleted. The image stays."
            }
        }
    }
}

/// Renders the buttons of the page of a container.
pub(super) fn buttons(client: &ApiClient, container: &ContainerView) -> Markup {
    let to = |verb: &str| format!("{}/{verb}", page_of(container));
    html! {
        div.actions {
            form.inline method="post" action=(to("start")) { (actions::key_input(client)) button { "Start" } }
            a.button href=(to("stop")) { "Stop…" }
            a.button href=(to("delete")) { "Delete…" }
        }
    }
}

/// Asks for the confirmation of an order that ends processes, and names them.
pub(crate) async fn confirm(
    client: ApiClient,
    Path((container, verb)): Path<(String, String)>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let ending = Ending::of(&verb).map_err(failed)?;
    let container = client.get(api::GET_CONTAINER.path([&container])).await.map_err(failed)?;
    let names = client.node_names().await.map_err(failed)?;
    let title = format!("{} {}", ending.title(), container.name);
    let to = format!("{}/{}", page_of(&container), ending.word());
    let content = html! {
        h1 { (title) }
        (what_ends(&container, &names))
        p { (ending.effect()) }
        @if actions::may_order(&client) {
            form.stack method="post" action=(to) {
                (actions::key_input(&client))
                (html::reason_input("reason"))
                div.actions {
                    button.danger { (title) }
                    a.button href=(page_of(&container)) { "Cancel" }
                }
            }
        } @else {
            p { "Orders require the role operator." }
        }
    };
    Ok(Page { client: &client, title, nav_path: "/containers", content }.answer(&headers))
}

/// Renders the replicas that an order ends.
fn what_ends(container: &ContainerView, names: &NodeNames) -> Markup {
    let ending: Vec<_> = container.replicas.iter().filter(|replica| replica.may_run()).collect();
    let seconds = container.stop_seconds;
    html! {
        @if ending.is_empty() {
            div.alert.idle { "No replica runs." }
        } @else {
            div.alert.warn {
                strong { @if ending.len() == 1 { "1 replica ends" } @else { (ending.len()) " replicas end" } }
                p { "Programs get SIGTERM, and SIGKILL after " (seconds) " s." }
            }
            ul.chosen { @for replica in &ending { li {
                (replica.id) " (" (replica.phase.as_str()) ")"
                @if let Some(node) = replica.node { " on " (names.link(node)) }
            } } }
        }
    }
}

pub(crate) async fn order(
    client: ApiClient,
    Path((container, verb)): Path<(String, String)>,
    request: Request<Body>,
) -> Answer {
    let fields = fields(request).await?;
    let order = match verb.as_str() {
        "start" => api::START_CONTAINER.path([&container]).with_body(&()),
        "stop" => api::STOP_CONTAINER.path([&container]).with_body(&()),
        "delete" => api::DELETE_CONTAINER.path([&container]).with_body(&()),
        _ => return Err(client.failed(&ApiError::no_such_action())),
    };
    let done = client.order_untyped(order, &actions::notes(&fields)).await;
    done.map_err(|error| client.failed(&error))?;
    let back = if verb == "delete" { String::new() } else { format!("/{}", encoded(&container)) };
    Ok(redirect(&format!("{PREFIX}/containers{back}")))
}
