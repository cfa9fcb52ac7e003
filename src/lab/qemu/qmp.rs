//! Client of QEMU's control socket (QMP).

use crate::LabError;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// Response timeout; under emulation on a loaded host QEMU may be busy for seconds.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum response size in bytes, more than any command of the lab needs.
const ANSWER_LIMIT: u64 = 1 << 20;

/// Resets the machine.
pub fn reset(node: &str, socket: &Path) -> Result<(), LabError> {
    execute(node, socket, "system_reset").map(drop)
}

/// Returns QEMU's status of the machine: `running`, `paused`, `internal-error`...
pub fn status(node: &str, socket: &Path) -> Result<String, LabError> {
    execute(node, socket, "query-status")
        .map(|answer| answer["status"].as_str().unwrap_or("unknown").to_owned())
}

/// Runs a command without arguments and returns its result.
fn execute(node: &str, socket: &Path, command: &str) -> Result<Value, LabError> {
    let fail = |detail: String| LabError::Qmp { node: node.to_owned(), detail };
    exchange(socket, command).map_err(|error| fail(error.to_string()))?.map_err(fail)
}

fn exchange(socket: &Path, command: &str) -> std::io::Result<Result<Value, String>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut lines = BufReader::new(stream.try_clone()?.take(ANSWER_LIMIT)).lines();
    lines.next().transpose()?;
    for word in ["qmp_capabilities", command] {
        writeln!(stream, "{}", json!({ "execute": word }))?;
        match answer(&mut lines)? {
            Ok(value) if word == command => return Ok(Ok(value)),
            Ok(_) => {}
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
    unreachable!("the loop returns at its end")
}

/// Reads the next response and skips events.
fn answer(
    lines: &mut impl Iterator<Item = std::io::Result<String>>,
) -> std::io::Result<Result<Value, String>> {
    for line in lines {
        let message: Value = serde_json::from_str(&line?)?;
        if let Some(value) = message.get("return") {
            return Ok(Ok(value.clone()));
        }
        if let Some(refusal) = message.get("error") {
            return Ok(Err(refusal["desc"].as_str().unwrap_or("refused").to_owned()));
        }
    }
    Ok(Err("it closed the connection".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qmp_events_before_reply_are_skipped() {
        let lines = [r#"{"event":"RESET"}"#, r#"{"return":{"status":"running"}}"#];
        let mut lines = lines.into_iter().map(|line| Ok(line.to_owned()));
        let answer = answer(&mut lines).expect("no I/O").expect("no refusal");
        assert_eq!(answer["status"], "running");
    }

    #[test]
    fn qmp_error_and_closed_connection_are_reported() {
        let mut lines =
            [Ok(r#"{"error":{"class":"GenericError","desc":"no"}}"#.to_owned())].into_iter();
        assert_eq!(answer(&mut lines).expect("no I/O"), Err("no".to_owned()));
        assert!(answer(&mut lines).expect("no I/O").is_err());
    }
}
