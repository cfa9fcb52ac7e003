//! Profiles, images, overlays.

use super::{Answer, actions};
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    form::Fields,
    gate::{fields, redirect},
    html::{self, Page, code, plain, shown, time},
};
use axum::{
    body::Body,
    extract::{Path, Query},
    http::{HeaderMap, Request, StatusCode},
};
use maud::{Markup, html};
use meshd_api::{ImageView, OverlayView, ProfileView, RevisionDiffView, RevisionView, Rollback};
use meshd_model::fleet::FileChange;
use serde_json::Value;

fn profile_link(name: &str) -> Markup {
    html! { a href=(format!("{PREFIX}/profiles/{}", encoded(name))) { (name) } }
}

fn words<T: ToString>(words: &[T]) -> Markup {
    plain(words.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
}

pub(crate) async fn profiles(client: ApiClient, headers: HeaderMap) -> Answer {
    let profiles: Vec<ProfileView> = client.get("/v1/profiles").await.map_err(|error| client.failed(&error))?;
    let row = |profile: &ProfileView| {
        let name = html! { (profile_link(profile.name.as_str())) @if profile.default { " " (html::badge("idle", "default")) } };
        let nodes = html! { a href=(format!("{PREFIX}/nodes?profile={}", profile.name)) { "nodes" } };
        vec![
            name,
            html::maybe(profile.extends.as_ref()),
            plain(&profile.image),
            words(&profile.overlays),
            words(&profile.vfio),
            nodes,
        ]
    };
    let rows: Vec<_> = profiles.iter().map(row).collect();
    let content = html! {
        h1 { "Profiles" }
        (html::table(&["Name", "Extends", "Image", "Overlays", "VFIO", "Nodes"], &rows, "The site has no profile."))
    };
    Ok(Page { client: &client, title: "Profiles".to_owned(), place: "/profiles", content }.answer(&headers))
}

pub(crate) async fn profile(client: ApiClient, Path(name): Path<String>, headers: HeaderMap) -> Answer {
    let failed = |error| client.failed(&error);
    let profiles: Vec<ProfileView> = client.get("/v1/profiles").await.map_err(failed)?;
    let profile = profiles.iter().find(|profile| profile.name.as_str() == name).ok_or_else(|| {
        failed(ApiError::new(
            StatusCode::NOT_FOUND,
            "no_profile",
            "there is no such profile",
            "the page Profiles lists all",
        ))
    })?;
    let revisions: Vec<RevisionView> =
        client.get(&format!("/v1/profiles/{}/history", encoded(&name))).await.map_err(failed)?;
    let row = |(index, view): (usize, &RevisionView)| {
        let marks = html! {
            @if view.boots { (html::badge("good", "boots")) " " }
            @if view.filed { (html::badge("idle", "site file")) " " }
            @if view.held { (html::badge("warn", "rolled back to")) }
        };
        vec![
            code(view.revised.generation.0.short()),
            marks,
            plain(&view.revised.image),
            code(view.revised.version.short()),
            time(view.revised.since),
            changes_link(&name, revisions.get(index + 1), view),
            rollback_form(&client, &name, view),
        ]
    };
    let rows: Vec<_> = revisions.iter().enumerate().map(row).collect();
    let vars: Vec<_> = profile
        .vars
        .iter()
        .map(|(name, value)| vec![code(name), code(serde_json::to_string(value).unwrap_or_default())])
        .collect();
    let content = html! {
        h1 { "Profile " (profile.name) }
        (html::facts(&[
            ("Extends", html::maybe(profile.extends.as_ref())),
            ("Image", plain(&profile.image)),
            ("Overlays, a later one wins", words(&profile.overlays)),
            ("Kernel arguments", words(&profile.kernel_args)),
            ("Packages", words(&profile.packages)),
            ("Bundles", words(&profile.bundles)),
            ("VFIO", words(&profile.vfio)),
            ("Data disks", words(&profile.data_disks)),
        ]))
        h2 { "Variables" }
        (html::table(&["Name", "Value"], &vars, "It sets no variable."))
        h2 { "Revisions" }
        (html::table(&["Generation", "State", "Image", "Version", "Since", "Changes", "Order"], &rows, "No revision is on record."))
    };
    Ok(Page { client: &client, title: name, place: "/profiles", content }.answer(&headers))
}

/// Leads to what a revision changed in the one before.
fn changes_link(profile: &str, before: Option<&RevisionView>, view: &RevisionView) -> Markup {
    html! {
        @if let Some(before) = before {
            @let pair = format!("from={}&to={}", before.revised.generation, view.revised.generation);
            a href=(format!("{PREFIX}/profiles/{}/diff?{pair}", encoded(profile))) {
                "changes of " (view.revised.generation.0.short())
            }
        }
    }
}

/// What one revision of a profile changed in another.
pub(crate) async fn profile_diff(
    client: ApiClient,
    Path(name): Path<String>,
    Query(asked): Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Answer {
    let asked = Fields(asked);
    let (from, to) = (asked.text("from"), asked.text("to"));
    let path = format!("/v1/profiles/{}/diff?from={}&to={}", encoded(&name), encoded(from), encoded(to));
    let found = client.get(&path).await;
    let RevisionDiffView { diff } = found.map_err(|error| client.failed(&error))?;
    let setting = |(key, [before, after]): (&String, &[String; 2])| vec![code(key), plain(before), plain(after)];
    let settings: Vec<_> = diff.changed.iter().map(setting).collect();
    let file = |(path, change): (&String, &FileChange)| vec![plain(change.sign()), code(path)];
    let files: Vec<_> = diff.files.iter().map(file).collect();
    let short = |generation: &str| code(generation.chars().take(12).collect::<String>());
    let content = html! {
        h1 { "Changes of profile " (profile_link(&name)) }
        (html::facts(&[("Before", short(from)), ("After", short(to))]))
        h2 { "Settings" }
        (html::table(&["Key", "Before", "After"], &settings, "No setting differs."))
        h2 { "Files of overlays" }
        p { "+ added, - removed, ~ changed" }
        (html::table(&["Change", "File"], &files, "No file differs."))
    };
    Ok(Page { client: &client, title: format!("Changes of {name}"), place: "/profiles", content }.answer(&headers))
}

/// Rolls the profile back to a revision; the one of the site file ends a rollback.
fn rollback_form(client: &ApiClient, profile: &str, view: &RevisionView) -> Markup {
    html! {
        @if view.boots {
            span.quiet { "booted" }
        } @else if actions::may_order(client) {
            form.inline method="post" action=(format!("{PREFIX}/profiles/{}/rollback", encoded(profile))) {
                (actions::force_box())
                @if view.filed {
                    input type="hidden" name="off" value="1";
                    button { "Return to site file" }
                } @else {
                    input type="hidden" name="to" value=(view.revised.generation);
                    button { "Roll back" }
                }
            }
        }
    }
}

pub(crate) async fn rollback(client: ApiClient, Path(name): Path<String>, request: Request<Body>) -> Answer {
    let fields = fields(request).await?;
    let to = Some(fields.text("to").to_owned()).filter(|to| !to.is_empty());
    let path = format!("/v1/profiles/{}/rollback", encoded(&name));
    let order = Rollback { to, off: fields.is_ticked("off") };
    let done = client.order::<Value>(&path, &order, &actions::notes(&fields)).await;
    done.map_err(|error| client.failed(&error))?;
    Ok(redirect(&format!("{PREFIX}/profiles/{}", encoded(&name))))
}

pub(crate) async fn images(client: ApiClient, headers: HeaderMap) -> Answer {
    let images: Vec<ImageView> = client.get("/v1/images").await.map_err(|error| client.failed(&error))?;
    let row = |view: &ImageView| {
        let image = &view.image;
        let problem = image.problem.as_deref().unwrap_or_default();
        vec![
            plain(&image.name),
            html! { (view.state()) @if !problem.is_empty() { div.quiet { (shown(problem)) } } },
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
    Ok(Page { client: &client, title: "Images".to_owned(), place: "/images", content }.answer(&headers))
}

pub(crate) async fn overlays(client: ApiClient, headers: HeaderMap) -> Answer {
    let overlays: Vec<OverlayView> = client.get("/v1/overlays").await.map_err(|error| client.failed(&error))?;
    let row = |overlay: &OverlayView| {
        let services = overlay.services.iter().map(|(level, names)| format!("{level}: {}", names.join(" ")));
        vec![
            plain(&overlay.name),
            plain(&overlay.description),
            plain(overlay.files),
            words(&overlay.packages),
            plain(services.collect::<Vec<_>>().join("; ")),
            words(&overlay.variables),
            html! { @for name in &overlay.profiles { (profile_link(name.as_str())) " " } },
        ]
    };
    let rows: Vec<_> = overlays.iter().map(row).collect();
    let content = html! {
        h1 { "Overlays" }
        (html::table(&["Name", "Purpose", "Files", "Packages", "Services", "Variables", "Profiles"], &rows, "The site has no overlay."))
    };
    Ok(Page { client: &client, title: "Overlays".to_owned(), place: "/overlays", content }.answer(&headers))
}
