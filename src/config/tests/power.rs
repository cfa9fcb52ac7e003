//! Tests of `[power]`: one BMC for several machines.

use super::*;
use meshd_types::PowerLadder;
use std::time::Duration;

fn rule(more: &str) -> String {
    format!("[[power.bmc]]\nuser = \"u\"\npassword_file = \"/p\"\ndriver = \"ipmi\"\n{more}\n")
}

#[test]
fn one_bmc_for_several_machines_is_refused() {
    for one in [
        "address = \"{name}-bmc\"",
        "nodes = [\"gpu[1-9]\"]\naddress = \"10.1.0.{id}\"",
        "nodes = [\"gpu1\"]\naddress = \"10.1.0.1\"",
        "nodes = [\"gpu[1]\"]\naddress = \"10.1.0.1\"",
    ] {
        let _ = valid(with_section(&rule(one)));
    }
    for several in [
        "address = \"10.1.0.1\"",
        "nodes = [\"gpu[1-2]\"]\naddress = \"10.1.0.1\"",
        "nodes = [\"gpu1\", \"gpu2\"]\naddress = \"10.1.0.1\"",
        "nodes = [\"gpu1*\"]\naddress = \"10.1.0.1\"",
    ] {
        let fault = one_fault(with_section(&rule(several)), several).to_string();
        assert!(fault.contains("`10.1.0.1` is one BMC, and the rule is for several"), "{fault}");
    }
    let two = ["a", "b"].map(|name| rule(&format!("nodes = [\"{name}\"]\naddress = \"bmc1\"")));
    let fault = one_fault(with_section(&two.concat()), "two rules").to_string();
    assert!(fault.contains("`bmc1` is the BMC of rule 1, too"), "{fault}");
}

#[test]
fn console_is_recorded_unless_the_rule_forbids_it_and_the_driver_has_one() {
    for (key, is_recorded) in
        [("", true), ("console_log = true", true), ("console_log = false", false)]
    {
        let site = valid(with_section(&rule(&format!("address = \"{{name}}-bmc\"\n{key}"))));
        assert_eq!(site.power.rules[0].records_console, is_recorded, "{key}");
    }
    let program = "[[power.bmc]]\ndriver = \"command\"\nprogram = \"/p\"\nconsole_log = true\n";
    let fault = one_fault(with_section(program), "a program").to_string();
    assert!(fault.contains("driver command does not use it"), "{fault}");
}

#[test]
fn retries_of_stalled_boots_need_count_and_interval() {
    let read = |keys: &str| with_section(&format!("[power]\n{keys}"));
    assert_eq!(valid(read("timeout = \"9s\"")).power.stall_retries, None, "off by default");
    let both = "stall_retries = 2\nstall_retry_interval = \"15m\"";
    let policy = StallRetryPolicy { count: 2, interval: Duration::from_secs(900) };
    assert_eq!(valid(read(both)).power.stall_retries, Some(policy));
    for one in ["stall_retries = 2", "stall_retry_interval = \"15m\""] {
        let fault = one_fault(read(one), one).to_string();
        assert!(fault.contains("is required"), "{fault}");
    }
    for wrong in
        [both.replace("= 2", "= 0"), both.replace("= 2", "= 11"), both.replace("15m", "5s")]
    {
        let _ = one_fault(read(&wrong), &wrong);
    }
}

#[test]
fn password_is_a_file_or_a_secret_of_the_site() {
    let site = |keys: &str, secrets: &str| {
        let rule = "[[power.bmc]]\ndriver = \"ipmi\"\naddress = \"{name}-bmc\"\n";
        with_section(&format!("[secrets]\n{secrets}\n{rule}{keys}\n"))
    };
    let one = "bmc_login = { file = \"/s\" }";
    let secret = "user = \"u\"\npassword_secret = \"bmc_login\"";
    let valid_site = valid(site(secret, one));
    let login = valid_site.power.rules[0].login.clone().unwrap();
    assert_eq!(login, BmcLogin { user: "u".to_owned(), password_file: "/s".into() });
    let overlays = |site: &Site| site.secrets.values().next().unwrap().overlays.clone();
    assert_eq!(overlays(&valid_site), Some(BTreeSet::new()), "no overlay may use the password");
    let named = "bmc_login = { file = \"/s\", overlays = [\"bmc-setup\"] }";
    assert_eq!(overlays(&valid(site(secret, named))).unwrap().len(), 1);
    for (keys, secrets, fault) in [
        (secret, "bmc_logn = { file = \"/s\" }", "password_secret: [secrets] has no `bmc_login`"),
        (secret, "bmc_logn = { file = \"/s\" }", "did you mean `bmc_logn`?"),
        (&format!("{secret}\npassword_file = \"/p\""), one, "the rule has `password_file`, too"),
        ("user = \"u\"", one, "password_file: is required"),
        ("password_secret = \"bmc_login\"", one, "user: is required"),
        ("user = \"u\"\npassword_secret = \"A b\"", one, "password_secret"),
    ] {
        let text = site(keys, secrets).expect_err(keys).to_string();
        assert!(text.contains(fault) && text.contains("site.toml:"), "{fault}: {text}");
    }
}

#[test]
fn ladder_is_that_of_the_rule() {
    let ladder = |key: &str| {
        let site = valid(with_section(&rule(&format!("address = \"{{name}}-bmc\"\n{key}"))));
        site.power.rules[0].ladder
    };
    assert_eq!(ladder(""), PowerLadder::Standard);
    assert_eq!(ladder("ladder = \"off-on\""), PowerLadder::OffOn);
    let fault = one_fault(with_section(&rule("ladder = \"dell\"")), "no ladder").to_string();
    assert!(fault.contains("use one of standard off-on"), "{fault}");
    let wol = "[[power.bmc]]\ndriver = \"wol\"\nladder = \"off-on\"";
    let fault = one_fault(with_section(wol), "it only powers on").to_string();
    assert!(fault.contains("driver wol does not use it"), "{fault}");
}
