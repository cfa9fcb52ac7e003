//! Frame of every page: header with the search, navigation in groups with counts, and the list of
//! keys.

use super::display_text;
use crate::{
    PREFIX,
    client::{ApiClient, NavCounts},
};
use maud::{DOCTYPE, Markup, html};
use meshd_api::{CallerView, routes as api};

/// A page of the navigation.
pub(super) struct NavPage {
    /// Path below `/ui`.
    pub(super) path: &'static str,
    pub(super) title: &'static str,
    /// Letter that opens the page after the key `g`.
    key: char,
}

const fn nav_page(path: &'static str, title: &'static str, key: char) -> NavPage {
    NavPage { path, title, key }
}

/// Groups of the navigation. The first ones are what an operator needs at night.
pub(super) const GROUPS: [(&str, &[NavPage]); 5] = [
    (
        "Watch",
        &[
            nav_page("/", "Overview", 'o'),
            nav_page("/nodes", "Nodes", 'n'),
            nav_page("/inbox", "Inbox", 'i'),
            nav_page("/doctor", "Doctor", 'd'),
        ],
    ),
    (
        "Change",
        &[
            nav_page("/operations", "Operations", 'p'),
            nav_page("/rollouts", "Rollouts", 'r'),
            nav_page("/bisections", "Bisections", 'b'),
        ],
    ),
    (
        "Work",
        &[
            nav_page("/vms", "VMs", 'v'),
            nav_page("/containers", "Containers", 'c'),
            nav_page("/tasks", "Tasks", 't'),
            nav_page("/slots", "Slots", 's'),
            nav_page("/volumes", "Volumes", 'm'),
        ],
    ),
    (
        "Configuration",
        &[
            nav_page("/profiles", "Profiles", 'f'),
            nav_page("/images", "Images", 'g'),
            nav_page("/overlays", "Overlays", 'y'),
            nav_page("/dhcp", "DHCP", 'h'),
        ],
    ),
    (
        "Records",
        &[
            nav_page("/events", "Events", 'e'),
            nav_page("/audit", "Audit log", 'u'),
            nav_page("/access", "Access", 'a'),
        ],
    ),
];

/// A number beside an entry: class, number, and its meaning.
type Count = (&'static str, usize, &'static str);

/// Requests the numbers of the navigation. A number that cannot be read is left out: the page
/// itself reports the error.
pub(crate) async fn load_nav_counts(client: &ApiClient) -> NavCounts {
    let operations = api::LIST_OPERATIONS.path([]);
    let rollouts = api::LIST_ROLLOUTS.path([]);
    let (status, operations, rollouts) = tokio::join!(
        client.get(api::GET_STATUS.path([])),
        client.list(operations.with("state", "running").with("limit", 1)),
        client.list(rollouts.with("state", "running").with("limit", 1)),
    );
    let Ok(status) = status else { return NavCounts::default() };
    let phase = |name| status.phases.get(name).copied().unwrap_or_default();
    NavCounts {
        waiting: phase("discovered"),
        attention: status.attention,
        findings: status.errors.len() + status.warnings.len(),
        is_blocked: !status.errors.is_empty(),
        operations: operations.ok().and_then(|page| page.total).unwrap_or_default(),
        rollouts: rollouts.ok().and_then(|page| page.total).unwrap_or_default(),
    }
}

fn count_of_page(counts: &NavCounts, path: &str) -> Option<Count> {
    let count = match path {
        "/nodes" => ("bad", counts.attention, "need attention"),
        "/inbox" => ("warn", counts.waiting, "waiting"),
        "/doctor" if counts.is_blocked => ("bad", counts.findings, "found"),
        "/doctor" => ("warn", counts.findings, "found"),
        "/operations" => ("busy", counts.operations, "running"),
        "/rollouts" => ("busy", counts.rollouts, "running"),
        _ => return None,
    };
    Some(count).filter(|(_, number, _)| *number > 0)
}

/// Returns the page of the navigation about the noun of a command.
pub(super) fn page_of_noun(noun: &str) -> Option<&'static NavPage> {
    let mut pages = GROUPS.iter().flat_map(|(_, pages)| pages.iter());
    pages.find(|page| {
        page.path.strip_prefix('/').and_then(|path| path.strip_suffix('s')) == Some(noun)
    })
}

/// Additional parts of a page for a signed-in user.
#[derive(Clone, Copy)]
pub(super) struct SignedIn<'c> {
    pub(super) caller: &'c CallerView,
    /// The navigation, which is a live part.
    pub(super) nav: &'c Markup,
    /// Entity tag of the live parts, with which the script begins.
    pub(super) tag: &'c str,
}

pub(super) fn frame(title: &str, signed_in: Option<SignedIn<'_>>, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (display_text(title)) " · meshd" }
                link rel="stylesheet" href=(format!("{PREFIX}/assets/style.css"));
                link rel="icon" href=(format!("{PREFIX}/assets/icon.svg"));
                script src=(format!("{PREFIX}/assets/script.js")) defer {}
            }
            body data-tag=[signed_in.map(|it| it.tag)] {
                a.skip href="#content" { "Skip to content" }
                @if let Some(SignedIn { caller, nav, .. }) = signed_in {
                    (header(caller))
                    (nav)
                }
                main id="content" tabindex="-1" { (content) }
                @if signed_in.is_some() { (keys()) }
            }
        }
    }
}

fn header(caller: &CallerView) -> Markup {
    html! {
        header {
            a.brand href=(format!("{PREFIX}/")) { "meshd" }
            form.search action=(format!("{PREFIX}/search")) role="search" {
                label.hidden for="q" { "Search" }
                input id="q" name="q" type="search" placeholder="Search: ID, name, MAC, address, serial" minlength="2" maxlength="100";
                button { "Search" }
            }
            form.who method="post" action=(format!("{PREFIX}/sign-out")) {
                button.keys type="button" data-keys title="Keys" { "?" span.hidden { " Keys" } }
                span { (caller.name) " (" (caller.role) ")" }
                button { "Sign out" }
            }
        }
    }
}

pub(super) fn navigation(counts: &NavCounts, nav_path: &str) -> Markup {
    html! {
        nav id="nav" aria-label="Pages" {
            @for (group, pages) in &GROUPS {
                div role="group" aria-label=(group) {
                    span.group aria-hidden="true" { (group) }
                    @for page in *pages {
                        a href=(format!("{PREFIX}{}", page.path)) aria-current=[(page.path == nav_path).then_some("page")] data-key=(page.key) {
                            (page.title)
                            @if let Some((class, number, meaning)) = count_of_page(counts, page.path) {
                                " " span class=(format!("badge {class}")) { (number) span.hidden { " " (meaning) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The keys of the script. Without the script, nothing opens the dialog.
fn keys() -> Markup {
    html! {
        dialog id="keys" aria-label="Keys" {
            p { kbd { "/" } " search " kbd { "?" } " this list " kbd { "Esc" } " close" }
            p { kbd { "g" } " and a letter open a page:" }
            div.columns {
                @for (group, pages) in &GROUPS {
                    div {
                        strong { (group) }
                        ul { @for page in *pages {
                            li { kbd { "g" } " " kbd { (page.key) } " " a href=(format!("{PREFIX}{}", page.path)) { (page.title) } }
                        } }
                    }
                }
            }
            form method="dialog" { button { "Close" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_of_pages_are_distinct_letters() {
        let pages: Vec<_> = GROUPS.iter().flat_map(|(_, pages)| pages.iter()).collect();
        let keys: BTreeSet<_> = pages.iter().map(|page| page.key).collect();
        assert_eq!(keys.len(), pages.len());
        assert!(keys.iter().all(char::is_ascii_lowercase));
    }
}
