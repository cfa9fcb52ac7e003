//! Volumes of VMs, and images of containers.

use crate::{
    PREFIX,
    client::{ApiClient, encoded},
    html::{self, Page, bytes, code, display_text, plain, time},
    request_checks::{fields, redirect},
    screens::{Answer, actions},
};
use axum::{
    body::Body,
    extract::Path,
    http::{HeaderMap, Request},
};
use maud::{Markup, html};
use meshd_api::{VolumeView, routes as api};

pub(crate) async fn page(client: ApiClient, headers: HeaderMap) -> Answer {
    let volumes =
        client.get(api::LIST_VOLUMES.path([])).await.map_err(|error| client.failed(&error))?;
    let may_order = actions::may_order(&client);
    let rows: Vec<_> = volumes.iter().map(|volume| row(volume, may_order)).collect();
    let content = html! {
        h1 { "Volumes" }
        p.quiet {
            code { "meshd volume add FILE" } " on the central node adds a file for VMs, "
            code { "meshd image import NAME --container oci:DIR" } " the image of a container."
        }
        (html::table(
            &["Name", "Kind", "Size", "Guest sees", "Digest", "Added", "Used by", "Order"],
            &rows,
            "The site has no volume.",
        ))
    };
    Ok(Page { client: &client, title: "Volumes".to_owned(), nav_path: "/volumes", content }
        .answer(&headers))
}

fn row(volume: &VolumeView, may_order: bool) -> Vec<Markup> {
    let users = html! {
        @for vm in &volume.vms { a href=(format!("{PREFIX}/vms/{}", encoded(vm.as_str()))) { (display_text(vm.as_str())) } " " }
        @for container in &volume.containers { "container " a href=(format!("{PREFIX}/containers/{}", encoded(container.as_str()))) { (container) } " " }
    };
    let is_unused = volume.vms.is_empty() && volume.containers.is_empty();
    vec![
        plain(&volume.name),
        plain(volume.kind.as_str()),
        plain(bytes(volume.size)),
        plain(bytes(volume.virtual_size)),
        code(volume.digest),
        time(volume.added_at),
        users,
        if may_order && is_unused { remove_form(volume) } else { Markup::default() },
    ]
}

fn remove_form(volume: &VolumeView) -> Markup {
    let id = format!("reason-{}", volume.digest.short());
    html! {
        details {
            summary { "Remove…" }
            form.stack method="post" action=(format!("{PREFIX}/volumes/{}/remove", volume.digest)) {
                p { "The file is deleted." }
                (html::reason_input(&id))
                button.danger { "Remove " (volume.name) }
            }
        }
    }
}

pub(crate) async fn remove(
    client: ApiClient,
    Path(volume): Path<String>,
    request: Request<Body>,
) -> Answer {
    let fields = fields(request).await?;
    let order = api::REMOVE_VOLUME.path([&volume]).with_body(&());
    let removed = client.order_untyped(order, &actions::notes(&fields)).await;
    removed.map_err(|error| client.failed(&error))?;
    Ok(redirect(&format!("{PREFIX}/volumes")))
}
