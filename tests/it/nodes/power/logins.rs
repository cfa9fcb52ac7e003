//! Logins that a BMC refuses, or may have refused, over restarts of meshd; and logins that are
//! secrets of the site.

use super::{Bench, PASSWORD, seen_machine, state, world_with};
use crate::world::{World, stderr};
use std::{fs, os::unix::fs::PermissionsExt as _};

/// The error of a question for the power state.
fn error_of(world: &World) -> String {
    state(world, "gpu001")["error"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn refused_password_is_sent_once_over_restarts_until_its_file_changes() {
    let (mut world, bench) = world_with("command", "approve");
    let _machine = seen_machine(&world, 1, "gpu001");
    bench.write("answer-status", "[ \"$MESHD_BMC_PASSWORD\" = new ] || exit 3\n");
    assert!(!error_of(&world).is_empty());
    for _ in 0..3 {
        world.kill();
        world.start();
        let error = error_of(&world);
        assert!(error.contains("refused this user and password a moment ago"), "{error}");
    }
    assert_eq!(bench.read("requests").lines().count(), 1, "a third refusal may lock the account");
    let stored = world.state_bytes();
    let is_stored = |secret: &[u8]| stored.windows(secret.len()).any(|part| part == secret);
    assert!(is_stored(b"bmc-login/") && !is_stored(PASSWORD.as_bytes()), "only a keyed digest");
    bench.write_password("new", 0o600);
    assert_eq!(state(&world, "gpu001")["state"], "off");
    // The record is gone: the old password may be tried again.
    bench.write_password(PASSWORD, 0o600);
    assert!(!error_of(&world).contains("a moment ago"));
}

#[test]
fn login_is_held_after_two_processes_end_during_its_tries() {
    let (mut world, bench) = world_with("command", "approve");
    let _machine = seen_machine(&world, 1, "gpu001");
    for _ in 0..2 {
        world.kill();
        world.start_with(&[("MESHD_FAIL", "login-begun".to_owned())]);
        let asked = world.meshd(&["node", "power", "status", "gpu001"]);
        assert!(!asked.status.success(), "the process ends before its answer");
    }
    world.kill();
    world.start();
    let error = error_of(&world);
    assert!(error.contains("meshd ended during two tries"), "{error}");
    assert!(bench.read("requests").is_empty());
    bench.write_password("other", 0o600);
    assert_eq!(state(&world, "gpu001")["state"], "off", "another password is not held");
}

#[test]
fn password_that_a_bmc_accepts_no_longer_is_sent_once() {
    let (mut world, bench) = world_with("command", "approve");
    let _machine = seen_machine(&world, 1, "gpu001");
    assert_eq!(state(&world, "gpu001")["state"], "off");
    let before = bench.read("requests").lines().count();
    bench.write("answer-status", "exit 3\n");
    assert!(!error_of(&world).is_empty());
    let held = "refused this user and password a moment ago";
    let error = error_of(&world);
    assert!(error.contains(held), "{error}");
    world.kill();
    world.start();
    let error = error_of(&world);
    assert!(error.contains(held), "{error}");
    assert_eq!(bench.read("requests").lines().count(), before + 1);
}

fn write_secret(world: &World, text: &str, mode: u32) {
    let file = world.path("login");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn password_is_a_secret_of_the_site_that_changes_at_once() {
    let mut world = World::prepared("approve");
    let bench = Bench::new(&world);
    let file = format!("password_file = \"{}\"", bench.0.join("password").display());
    let secret = format!("[secrets]\nlogin = {{ file = \"{}\" }}", world.path("login").display());
    let sections = bench.sections("command", "");
    let sections = sections.replace(&file, "password_secret = \"login\"");
    world
        .edit_site("[defaults]", &sections.replace("[defaults]", &format!("{secret}\n[defaults]")));
    write_secret(&world, "first-horse\n", 0o640);
    let checked = stderr(&world.meshd(&["check"]));
    assert_eq!(checked.matches("may be read by others").count(), 1, "{checked}");
    assert!(world.serve_and_fail().contains("may be read by others"));
    write_secret(&world, "first-horse\n", 0o600);
    world.start();
    let _machine = seen_machine(&world, 1, "gpu001");
    bench.write("answer-status", "echo \"$MESHD_BMC_PASSWORD\" >\"$dir/sent\"\n");
    assert_eq!(state(&world, "gpu001")["state"], "off");
    assert_eq!(bench.read("sent"), "first-horse\n");
    write_secret(&world, "second-horse\n", 0o600);
    assert_eq!(state(&world, "gpu001")["state"], "off");
    assert_eq!(bench.read("sent"), "second-horse\n");

    // A secret that a rule uses stays: the reload is refused, and the rule works.
    world.edit_site(&secret, "[secrets]");
    for args in [&["check"][..], &["reload"]] {
        let refused = world.meshd(args);
        let text = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{text}");
        assert!(text.contains("password_secret: [secrets] has no `login`"), "{text}");
    }
    assert_eq!(state(&world, "gpu001")["state"], "off");
    let secrets = [b"first-horse".as_slice(), b"second-horse"];
    let stored = world.state_bytes();
    let is_stored = |secret: &&[u8]| stored.windows(secret.len()).any(|part| part == *secret);
    assert!(!secrets.iter().any(is_stored), "a secret is stored");
}
