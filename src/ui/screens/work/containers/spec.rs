//! What a container runs, as names and values.

use crate::{
    PREFIX,
    html::{bytes, code, display_text, plain, time},
};
use maud::{Markup, html};
use meshd_api::{
    ContainerView,
    container_options::{cpu_words, mount_words, port_words, probe_words, restart_words},
};
use meshd_proto::container::HealthCheck;

/// Returns one row for each property. Rows without a value are not shown.
pub(super) fn rows(container: &ContainerView) -> Vec<(&'static str, Markup)> {
    let mib = |mib: u32| plain(bytes(u64::from(mib) << 20));
    vec![
        (
            "Image",
            html! { a href=(format!("{PREFIX}/volumes")) { (container.image) } " " span.quiet { (code(container.digest.short())) } },
        ),
        ("Program", program(&container.argv)),
        ("Variables", variables(&container.env)),
        ("Working directory", code(&container.working_dir)),
        ("User and group", plain(format!("{}:{}", container.uid, container.gid))),
        ("CPUs", plain(cpu_words(container.cpu_millis))),
        ("Memory", mib(container.memory_mib)),
        ("Written files", mib(container.scratch_mib)),
        ("Published ports", plain(port_words(&container.ports))),
        ("Mounts", plain(mount_words(&container.mounts))),
        ("Restart", plain(restart_words(container.restart))),
        ("Health check", container.health.as_ref().map(health).unwrap_or_default()),
        ("Killed after", plain(seconds(container.stop_seconds))),
        ("Owner", plain(&container.owner)),
        ("Created", time(container.created_at)),
    ]
}

/// Renders program and arguments. An argument may contain spaces.
fn program(argv: &[String]) -> Markup {
    html! { @for word in argv { code { (display_text(word)) } " " } }
}

fn variables(names: &[String]) -> Markup {
    html! {
        @if !names.is_empty() { (display_text(&names.join(", "))) span.quiet { " (values are not shown)" } }
    }
}

fn health(health: &HealthCheck) -> Markup {
    let HealthCheck { probe, interval_seconds, timeout_seconds, failures, start_seconds } = health;
    let failed =
        if *failures == 1 { "1 failure".to_owned() } else { format!("{failures} failures") };
    html! {
        code { (display_text(&probe_words(probe))) }
        " every " (seconds(*interval_seconds)) ", timeout " (seconds(*timeout_seconds))
        ", unhealthy after " (failed)
        @if *start_seconds > 0 { ", from " (seconds(*start_seconds)) " after the start" }
    }
}

fn seconds(number: u16) -> String {
    format!("{number} s")
}
