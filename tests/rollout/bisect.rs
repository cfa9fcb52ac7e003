//! A bisection with a real machine. Each generation has its number on the kernel's command line,
//! and the check asks the node for it by a task.

use crate::{
    online,
    racks::{BOOT, OrEnd, kernel_starts},
    revise,
};
use meshd_lab::{Identity, Wait};
use std::{fs, path::Path, thread, time::Duration};

const NODE: u8 = 1;
/// Generations after the good one.
const GENERATIONS: usize = 16;
const FIRST_BAD: usize = 11;
const PROBES: usize = 4;
/// Pause between two looks at the bisection.
const PAUSE: Duration = Duration::from_secs(1);

/// The check: it fails from the planted generation on. A task that does not run says nothing.
fn check(dir: &Path) -> String {
    let path = dir.join("check.sh");
    let script = format!(
        "line=$('{}' --site '{}' task run --group spare --launcher none --timeout 1m -- \
         cat /proc/cmdline) || exit 75\n\
         number=${{line##*lab.generation=}}\nnumber=${{number%% *}}\n\
         echo \"generation $number\" >&2\ntest \"$number\" -lt {FIRST_BAD}\n",
        env!("CARGO_BIN_EXE_meshd"),
        dir.join("lab/site.toml").display()
    );
    fs::write(&path, script).unwrap();
    path.display().to_string()
}

#[test]
fn spare_node_finds_planted_generation_among_16_in_4_boots() {
    let test = online(1, |options, dir| {
        options
            .set("profiles.lab.kernel_args", r#"["lab.generation=0"]"#)
            .set("groups.spare.nodes", &format!("[\"{}\"]", Identity::at(NODE).node_id()))
            .set("programs.jobs.program", "/bin/sh")
            .set("programs.jobs.args", &format!("[{:?}]", check(dir)))
            .set("programs.jobs.timeout", "3m")
    });
    let rack = &test.rack;
    for number in 1..=GENERATIONS {
        let arg = |number: usize| format!("lab.generation={number}\"");
        revise(rack, &arg(number - 1), &arg(number));
    }
    let history = rack.query(&["profile", "history", "lab"]).or_end();
    let digests = history.as_array().unwrap().iter().rev();
    let digests: Vec<&str> = digests.map(|one| one["generation"].as_str().unwrap()).collect();
    assert_eq!(digests.len(), 1 + GENERATIONS, "{history}");
    let before = rack.node(NODE).or_end().unwrap();

    let bounds = ["bisect", "node1", "--good", digests[0], "--bad", digests[GENERATIONS]];
    let options = ["--check", "jobs", "--soak", "1s", "--node-timeout", "8m", "--yes", "--no-wait"];
    rack.run_cli(&[&bounds[..], &options[..]].concat()).or_end();
    let boots = u32::try_from(PROBES).unwrap() + 2;
    let ended = rack.wait(BOOT * boots, "the end of the bisection", |rack| {
        thread::park_timeout(PAUSE);
        let all = rack.query(&["bisect", "list"])?;
        let last = all.as_array().unwrap().last().unwrap().clone();
        let is_over = ["done", "failed", "aborted"].contains(&last["state"].as_str().unwrap());
        let seen = last.to_string();
        Ok(Wait::some(is_over.then_some(last), seen))
    });
    let ended = ended.or_end();
    assert_eq!(ended["state"], "done", "{ended}");
    assert_eq!(ended["first_bad"], digests[FIRST_BAD], "{ended}");
    assert_eq!(ended["probes"].as_array().unwrap().len(), PROBES, "{ended}");
    let after = rack.node(NODE).or_end().unwrap();
    assert_eq!((&after["phase"], &after["generation"]), (&"online".into(), &before["generation"]));
    assert_eq!(kernel_starts(rack, NODE), 1 + PROBES + 1, "its boot, the probes, its return");
    assert!(rack.serial(NODE).contains("lab.generation=10"), "a probe booted the last good one");
}
