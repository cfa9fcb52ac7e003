//! The log of a replica.

use super::{super::tail, page_of as container_page};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    html::{self, Page},
    screens::{Answer, work::MAX_OUTPUT},
};
use axum::{
    extract::Path,
    http::{HeaderMap, StatusCode},
};
use maud::html;
use meshd_api::{ContainerView, ReplicaView, routes as api};
use meshd_proto::container::ReplicaId;

/// Returns the path of the page.
pub(super) fn page_of(replica: &ReplicaView) -> String {
    format!("{PREFIX}/containers/{}/log", encoded(&replica.id.to_string()))
}

/// Requests the container of a replica.
pub(in crate::screens) async fn container_of(
    client: &ApiClient,
    replica: &str,
) -> Result<(ReplicaId, ContainerView), ApiError> {
    let absent = || {
        let message = format!("there is no replica `{}`", html::display_text(replica));
        ApiError::new(StatusCode::NOT_FOUND, "no_replica", message, "open it from its container")
    };
    let id: ReplicaId = replica.parse().map_err(|_| absent())?;
    let container = client.get(api::GET_CONTAINER.path([&id.container])).await?;
    let is_known = container.replicas.iter().any(|other| other.id == id);
    if is_known { Ok((id, container)) } else { Err(absent()) }
}

pub(crate) async fn page(
    client: ApiClient,
    Path(replica): Path<String>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let (id, container) = container_of(&client, &replica).await.map_err(failed)?;
    let log = client.tail(api::GET_CONTAINER_LOG.path([&id]), MAX_OUTPUT).await;
    let content = html! {
        h1 { "Log of " (id) }
        p { "Container " a href=(container_page(&container)) { (container.name) } }
        @if container.replicas.len() > 1 {
            div.tabs role="navigation" aria-label="Replicas" {
                @for other in &container.replicas {
                    a href=(page_of(other)) aria-current=[(other.id == id).then_some("page")] { (other.id) }
                }
            }
        }
        div id="log" data-live {
            @match &log {
                Ok(bytes) if bytes.is_empty() => p.quiet { "It has written nothing yet." },
                Ok(bytes) => pre.output tabindex="0" aria-label="Log" { (tail(&String::from_utf8_lossy(bytes))) },
                Err(error) => (html::refusal(error)),
            }
        }
    };
    let title = format!("Log of {id}");
    Ok(Page { client: &client, title, nav_path: "/containers", content }.answer(&headers))
}
