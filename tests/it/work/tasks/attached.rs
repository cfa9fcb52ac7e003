//! What becomes of a task whose command loses its output, its terminal or its patience; and of data
//! at its standard input.

use super::rig::Rig;
use crate::world::{eventually, stderr};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Output, Stdio},
};

/// `node exec` of a program on the first node; it ends by a signal or by the end of its task.
fn exec(rig: &Rig, argv: &[&str], input: Stdio, output: Stdio) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
    command
        .arg("--site")
        .arg(&rig.world.site)
        .args(["node", "exec", &rig.machines[0].id, "--"])
        .args(argv);
    command.stdin(input).stdout(output).stderr(Stdio::piped()).spawn().unwrap()
}

fn newest(rig: &Rig) -> String {
    let tasks = rig.world.json(&["task", "list", "-o", "json"]);
    tasks
        .as_array()
        .unwrap()
        .last()
        .map(|task| task["state"].as_str().unwrap().to_owned())
        .unwrap_or_default()
}

fn full() -> Stdio {
    fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

/// The command ended with this exit code, and its task is cancelled.
fn is_cancelled(rig: &Rig, output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}", stderr(output));
    eventually("the task is cancelled", || match newest(rig).as_str() {
        "cancelled" => Ok(()),
        state => Err(state.to_owned()),
    });
}

#[test]
fn exec_cancels_its_task_when_output_or_terminal_is_gone() {
    let rig = Rig::new();
    let endless = ["/usr/bin/yes"];
    let output = exec(&rig, &endless, Stdio::null(), full()).wait_with_output().unwrap();
    assert!(stderr(&output).contains("cannot write to standard output"), "{}", stderr(&output));
    is_cancelled(&rig, &output, 1);
    let short = exec(&rig, &["/bin/echo", "hi"], Stdio::null(), full()).wait_with_output().unwrap();
    assert_eq!(short.status.code(), Some(1), "{}", stderr(&short));

    // As in `meshd node exec NODE -- yes | head -1`.
    let mut command = exec(&rig, &endless, Stdio::null(), Stdio::piped());
    let mut line = String::new();
    BufReader::new(command.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "y\n");
    is_cancelled(&rig, &command.wait_with_output().unwrap(), 141);

    for (signal, code) in [(Signal::HUP, 129), (Signal::INT, 130), (Signal::TERM, 143)] {
        let mut command = exec(
            &rig,
            &["/bin/sh", "-c", "echo begun; exec sleep 1000"],
            Stdio::null(),
            Stdio::piped(),
        );
        let mut line = String::new();
        let mut reader = BufReader::new(command.stdout.take().unwrap());
        reader.read_line(&mut line).unwrap();
        kill_process(Pid::from_child(&command), signal).unwrap();
        is_cancelled(&rig, &command.wait_with_output().unwrap(), code);
        drop(reader);
    }
    // `task run` leaves the task alone: it may have run for hours.
    let id = rig.begin(&["--launcher", "none", "--", "/bin/sleep", "1000"]);
    rig.until_state(&id, "running");
    assert!(rig.world.meshd(&["task", "cancel", &id]).status.success());
}

#[test]
fn exec_with_data_at_standard_input_is_refused_and_runs_nothing() {
    let rig = Rig::new();
    let file = rig.world.path("data");
    fs::write(&file, "data\n").unwrap();
    let refused = exec(&rig, &["/bin/cat"], fs::File::open(&file).unwrap().into(), Stdio::piped());
    let refused = refused.wait_with_output().unwrap();
    assert!(
        stderr(&refused).contains("standard input has data")
            && stderr(&refused).contains("< /dev/null")
    );
    assert_eq!(
        (refused.status.code(), newest(&rig).as_str()),
        (Some(1), ""),
        "{}",
        stderr(&refused)
    );

    // An empty pipe is accepted. Data that comes later is reported.
    let mut command =
        exec(&rig, &["/bin/sh", "-c", "echo begun; exec sleep 3"], Stdio::piped(), Stdio::piped());
    let mut line = String::new();
    BufReader::new(command.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let mut input = command.stdin.take().unwrap();
    input.write_all(b"late\n").unwrap();
    let done = command.wait_with_output().unwrap();
    assert!(
        done.status.success() && stderr(&done).contains("was not passed on"),
        "{}",
        stderr(&done)
    );
}
