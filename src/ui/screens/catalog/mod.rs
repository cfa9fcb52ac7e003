//! Pages of profiles, images and overlays.
//!
//! | module | content |
//! | --- | --- |
//! | `overlays` | overlays with their variables and files |
//! | `profiles` | profiles with the origin of each value, their revisions, and differences between revisions |

pub(crate) mod overlays;
pub(crate) mod profiles;

use super::{Answer, actions};
use crate::{
    PREFIX,
    client::{ApiClient, encoded},
    html::{self, Page, code, display_text, plain},
};
use axum::http::HeaderMap;
use maud::{Markup, html};
use meshd_api::{ImageView, routes as api};

fn profile_link(name: &str) -> Markup {
    html! { a href=(format!("{PREFIX}/profiles/{}", encoded(name))) { (name) } }
}

fn words<T: ToString>(words: &[T]) -> Markup {
    plain(words.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
}

pub(crate) async fn images(client: ApiClient, headers: HeaderMap) -> Answer {
    let images =
        client.get(api::LIST_IMAGES.path([])).await.map_err(|error| client.failed(&error))?;
    let row = |view: &ImageView| {
        let image = &view.image;
        let problem = image.problem.as_deref().unwrap_or_default();
        vec![
            plain(&image.name),
            html! { (view.state()) @if !problem.is_empty() { div.quiet { (display_text(problem)) } } },
            image.version.map(|version| code(version.short())).unwrap_or_default(),
            plain(image.versions.len()),
            html! { @for name in &view.profiles { (profile_link(name.as_str())) " " } },
        ]
    };
    let rows: Vec<_> = images.iter().map(row).collect();
    let content = html! {
        h1 { "Images" }
        (html::table(&["Name", "State", "Version", "Versions kept", "Profiles"], &rows, "The site has no image."))
    };
    Ok(Page { client: &client, title: "Images".to_owned(), nav_path: "/images", content }
        .answer(&headers))
}
