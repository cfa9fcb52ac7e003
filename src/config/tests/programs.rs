//! Tests of `[programs]`.

use super::*;
use std::time::Duration;

#[test]
fn program_has_a_path_arguments_and_a_limit() {
    let text = "[programs.gate]\nprogram = \"/etc/meshd/gate\"\nargs = [\"--jobs\", \"3\"]\n\
                timeout = \"5m\"\n[programs.back]\nprogram = \"/bin/true\"";
    let site = valid(with_section(text));
    let gate = &site.programs[&"gate".parse().unwrap()];
    assert_eq!(
        (gate.args.join(" "), gate.timeout),
        ("--jobs 3".to_owned(), Duration::from_secs(300))
    );
    assert_eq!(site.programs[&"back".parse().unwrap()].timeout, Duration::from_secs(60));
    assert_eq!(valid(with_section("")).programs.len(), 0);
}

#[test]
fn program_without_a_path_or_with_a_wrong_value_is_refused() {
    for (wrong, why) in [
        ("[programs.gate]\nargs = []", "is required"),
        ("[programs.gate]\nprogram = \"/a\"\ntimeout = \"2h\"", "timeout"),
        ("[programs.gate]\nprogram = \"/a\"\nshell = true", "shell"),
        ("[programs.\"Gate!\"]\nprogram = \"/a\"", "program"),
        ("[programs.gate]\nprogram = \"~/gate\"", "no shell"),
    ] {
        let fault = one_fault(with_section(wrong), wrong).to_string();
        assert!(fault.contains(why), "{fault}");
    }
}
