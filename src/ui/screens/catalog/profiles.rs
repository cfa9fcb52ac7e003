//! Profiles with the origin of each value, their revisions, and rollback.

use super::{Answer, actions, profile_link, words};
use crate::{
    PREFIX,
    client::{ApiClient, encoded},
    form::Fields,
    html::{self, Page, code, display_text, plain, time},
    request_checks::{fields, redirect},
};
use axum::{
    body::Body,
    extract::{Path, Query},
    http::{HeaderMap, Request},
};
use maud::{Markup, html};
use meshd_api::{
    ProfileView, RevisionDiffView, RevisionView, Rollback, SettingView, routes as api,
};
use meshd_model::fleet::FileChange;

pub(crate) async fn profiles(client: ApiClient, headers: HeaderMap) -> Answer {
    let profiles =
        client.get(api::LIST_PROFILES.path([])).await.map_err(|error| client.failed(&error))?;
    let row = |profile: &ProfileView| {
        let name = html! { (profile_link(profile.name.as_str())) @if profile.default { " " (html::badge("idle", "default")) } };
        let nodes =
            html! { a href=(format!("{PREFIX}/nodes?profile={}", profile.name)) { "nodes" } };
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
    Ok(Page { client: &client, title: "Profiles".to_owned(), nav_path: "/profiles", content }
        .answer(&headers))
}

pub(crate) async fn profile(
    client: ApiClient,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Answer {
    let failed = |error| client.failed(&error);
    let settings = client.get(api::LIST_PROFILE_SETTINGS.path([&name])).await.map_err(failed)?;
    let revisions = client.get(api::LIST_PROFILE_REVISIONS.path([&name])).await.map_err(failed)?;
    let content = html! {
        h1 { "Profile " (display_text(&name)) }
        p { a href=(format!("{PREFIX}/nodes?profile={}", encoded(&name))) { "Nodes with this profile" } }
        h2 { "Values" }
        (setting_table(&settings))
        h2 { "Revisions" }
        (revision_table(&client, &name, &revisions))
    };
    Ok(Page { client: &client, title: name, nav_path: "/profiles", content }.answer(&headers))
}

/// Renders the values of the profile and of the profiles that it extends.
fn setting_table(settings: &[SettingView]) -> Markup {
    let row = |setting: &SettingView| {
        let value = setting.value.to_string();
        let note = html! { @if let Some(by) = &setting.removed_by { (html::badge("idle", "removed")) " by " (profile_link(by.as_str())) } };
        vec![
            code(&setting.key),
            html! { @if setting.removed_by.is_some() { del { (display_text(&value)) } } @else { (code(&value)) } },
            profile_link(setting.by.as_str()),
            note,
        ]
    };
    let rows: Vec<_> = settings.iter().map(row).collect();
    html::table(&["Key", "Value", "Set by", "Note"], &rows, "It sets no value.")
}

fn revision_table(client: &ApiClient, name: &str, revisions: &[RevisionView]) -> Markup {
    let row = |(index, view): (usize, &RevisionView)| {
        let marks = html! {
            @if view.boots { (html::badge("good", "boots")) " " }
            @if view.current { (html::badge("idle", "site file")) " " }
            @if view.pinned { (html::badge("warn", "rolled back to")) }
        };
        vec![
            code(view.revised.generation.0.short()),
            marks,
            plain(&view.revised.image),
            code(view.revised.version.short()),
            time(view.revised.since),
            changes_link(name, revisions.get(index + 1), view),
            rollback_form(client, name, view),
        ]
    };
    let rows: Vec<_> = revisions.iter().enumerate().map(row).collect();
    html::table(
        &["Generation", "State", "Image", "Version", "Since", "Changes", "Order"],
        &rows,
        "No revision is on record.",
    )
}

/// Renders a link to the differences between a revision and its predecessor.
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

/// Shows the differences between two revisions of a profile.
pub(crate) async fn profile_diff(
    client: ApiClient,
    Path(name): Path<String>,
    Query(query): Query<Fields>,
    headers: HeaderMap,
) -> Answer {
    let from = query.text("from");
    let to = query.text("to");
    let path = api::COMPARE_PROFILE_REVISIONS.path([&name]).with("from", from).with("to", to);
    let found = client.get(path).await;
    let RevisionDiffView { diff } = found.map_err(|error| client.failed(&error))?;
    let setting = |(key, [before, after]): (&String, &[String; 2])| {
        vec![code(key), plain(before), plain(after)]
    };
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
    Ok(Page {
        client: &client,
        title: format!("Changes of {name}"),
        nav_path: "/profiles",
        content,
    }
    .answer(&headers))
}

/// Renders the form that rolls the profile back to a revision. Selecting the site file's revision
/// ends a rollback.
fn rollback_form(client: &ApiClient, profile: &str, view: &RevisionView) -> Markup {
    html! {
        @if view.boots {
            span.quiet { "booted" }
        } @else if actions::may_order(client) {
            form.inline method="post" action=(format!("{PREFIX}/profiles/{}/rollback", encoded(profile))) {
                (actions::force_box())
                @if view.current {
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

pub(crate) async fn rollback(
    client: ApiClient,
    Path(name): Path<String>,
    request: Request<Body>,
) -> Answer {
    let fields = fields(request).await?;
    let to = Some(fields.text("to").to_owned()).filter(|to| !to.is_empty());
    let order = api::ROLL_BACK_PROFILE
        .path([&name])
        .with_body(&Rollback { to, off: fields.is_ticked("off") });
    let done = client.order_untyped(order, &actions::notes(&fields)).await;
    done.map_err(|error| client.failed(&error))?;
    Ok(redirect(&format!("{PREFIX}/profiles/{}", encoded(&name))))
}
