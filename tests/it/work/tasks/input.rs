//! Standard input of `node exec --stdin`: complete, at the pace of the program, with its end; and
//! never a part of it in place of the whole.

use super::rig::Rig;
use crate::world::{eventually, stderr};
use meshd_types::Digest;
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Output, Stdio},
};

/// More than all queues and sockets between the command and the program hold.
const PASTE: usize = 24 << 20;

fn exec(rig: &Rig, argv: &[&str], input: Stdio) -> Child {
    let mut command = rig.world.cli(&["node", "exec", "-i", &rig.machines[0].id, "--"]);
    command.args(argv).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn file(rig: &Rig, bytes: &[u8]) -> Stdio {
    let path = rig.world.path("input");
    fs::write(&path, bytes).unwrap();
    fs::File::open(path).unwrap().into()
}

/// Lines in which a missing, repeated or moved byte is visible, with every byte that a terminal
/// would take for a key.
fn text(bytes: usize) -> Vec<u8> {
    let lines =
        (0..).flat_map(|line: u32| format!("{line:08} \u{1d}\u{3}\u{4}\0\r\n").into_bytes());
    lines.take(bytes).collect()
}

fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn exec_passes_standard_input_on_complete_with_its_end() {
    let rig = Rig::new();
    for size in [0, 5, 1 << 20, PASTE] {
        let input = text(size);
        let digest = Digest::of(&input).to_string();
        // The program begins to read when nothing more fits between.
        let program = "echo begun >&2; read -t 0.5 x < /dev/zero; exec sha256sum";
        let ended = exec(&rig, &["/bin/bash", "-c", program], file(&rig, &input));
        let ended = ended.wait_with_output().unwrap();
        assert!(ended.status.success(), "{size}: {}", stderr(&ended));
        assert!(shown(&ended).starts_with(&digest), "{size}: {}", shown(&ended));
    }
    // A program that stops reading ends as it likes: nobody complains.
    let first = exec(&rig, &["/usr/bin/head", "-c", "8"], file(&rig, &text(PASTE)));
    let first = first.wait_with_output().unwrap();
    assert_eq!((first.status.code(), shown(&first).as_str()), (Some(0), "00000000"));
    let none = exec(&rig, &["/bin/sh", "-c", "exec <&-; exit 3"], file(&rig, &text(PASTE)));
    let none = none.wait_with_output().unwrap();
    assert_eq!(none.status.code(), Some(3), "{}", stderr(&none));
    rig.is_clean();
}

#[test]
fn input_that_breaks_off_fails_its_task_and_is_no_end() {
    let rig = Rig::new();
    let copied = "echo begun; cat > /dev/null; echo complete";
    let mut command = exec(&rig, &["/bin/sh", "-c", copied], Stdio::piped());
    let mut line = String::new();
    BufReader::new(command.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    command.stdin.as_mut().unwrap().write_all(b"half of it").unwrap();
    command.kill().unwrap();
    command.wait().unwrap();
    let task = eventually("the task has failed", || {
        let tasks = rig.world.json(&["task", "list", "-o", "json"]);
        let task = tasks.as_array().unwrap().last().cloned().unwrap();
        if task["state"] == "failed" { Ok(task) } else { Err(task.to_string()) }
    });
    assert_eq!(task["cause"], "input_lost", "{task}");
    let id = task["id"].as_str().unwrap();
    assert!(!rig.logs(id).contains("complete"), "{}", rig.logs(id));

    // Two programs cannot read one input.
    let both = [rig.machines[0].id.as_str(), &rig.machines[1].id];
    let args = [&["node", "exec", "--stdin"], &both[..], &["--", "/bin/cat"]].concat();
    let refused = rig.world.cli(&args).stdin(file(&rig, b"x")).output().unwrap();
    assert!(stderr(&refused).contains("cannot pass standard input to 2 nodes"));
    assert_eq!(refused.status.code(), Some(1));
    rig.is_clean();
}
