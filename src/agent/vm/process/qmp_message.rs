//! Messages of the QEMU Machine Protocol (QMP), one JSON object a line. Pure.

use super::vm_event::ShutdownCause;
use crate::vm::spec::argv::VOLUME_NODE;
use serde_json::{Value, json};

/// Maximum length of a line in bytes. Answers have a few KiB.
pub const MAX_LINE: usize = 256 * 1024;
/// Maximum length of texts from QEMU, in characters.
const MAX_TEXT: usize = 300;

/// A message of QEMU.
#[derive(Clone, Debug, PartialEq)]
pub enum QmpMessage {
    /// The greeting; QEMU waits for `qmp_capabilities`.
    Greeting,
    /// The command with this ID succeeded.
    Return { id: u64, value: Value },
    /// The command with this ID failed.
    Error { id: u64, reason: String },
    /// QEMU paused the guest; `query-status` returns the reason.
    Stopped,
    /// QEMU resumed the guest.
    Resumed,
    /// A disk request of the guest failed and paused it.
    DiskError(DiskError),
    /// QEMU is about to end.
    ShuttingDown(ShutdownCause),
    /// Any other event, or an invalid message.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskError {
    /// Index of the volume in the specification; `None` for another disk.
    pub volume: Option<usize>,
    pub operation: String,
    /// Error of the operating system.
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    pub run_state: String,
    pub resumable: bool,
}

pub fn parse(line: &[u8]) -> QmpMessage {
    let Ok(Value::Object(mut message)) = serde_json::from_slice::<Value>(line) else {
        return QmpMessage::Other;
    };
    let text = |value: Option<&Value>| -> String {
        value.and_then(Value::as_str).unwrap_or_default().chars().take(MAX_TEXT).collect()
    };
    let id = message.get("id").and_then(Value::as_u64).unwrap_or(0);
    if let Some(value) = message.remove("return") {
        return QmpMessage::Return { id, value };
    }
    if let Some(error) = message.get("error") {
        return QmpMessage::Error { id, reason: text(error.get("desc")) };
    }
    let data = message.get("data");
    match message.get("event").and_then(Value::as_str) {
        Some("SHUTDOWN") => {
            QmpMessage::ShuttingDown(shutdown_cause(text(data.and_then(|data| data.get("reason")))))
        }
        Some("STOP") => QmpMessage::Stopped,
        Some("RESUME") => QmpMessage::Resumed,
        Some("BLOCK_IO_ERROR") => {
            let field = |name: &str| text(data.and_then(|data| data.get(name)));
            if field("action") != "stop" {
                return QmpMessage::Other;
            }
            let volume =
                field("node-name").strip_prefix(VOLUME_NODE).and_then(|index| index.parse().ok());
            QmpMessage::DiskError(DiskError {
                volume,
                operation: field("operation"),
                reason: field("reason"),
            })
        }
        Some("GUEST_PANICKED") => QmpMessage::ShuttingDown(ShutdownCause::Panic),
        None if message.contains_key("QMP") => QmpMessage::Greeting,
        _ => QmpMessage::Other,
    }
}

/// Converts `ShutdownCause` of QEMU's qapi/run-state.json.
fn shutdown_cause(reason: String) -> ShutdownCause {
    match reason.as_str() {
        "guest-shutdown" | "guest-reset" => ShutdownCause::Guest,
        "guest-panic" => ShutdownCause::Panic,
        _ => ShutdownCause::Outside { reason },
    }
}

/// Returns a command without arguments as a line.
pub fn command(id: u64, name: &str) -> String {
    format!("{}\n", json!({ "execute": name, "id": id }))
}

/// Returns whether a result of `query-status` shows a guest that has not started.
pub fn is_before_start(status: &Value) -> bool {
    status.get("status").and_then(Value::as_str) == Some("prelaunch")
}

/// Returns the pause in a result of `query-status` (`RunState` of QEMU's qapi/run-state.json).
pub fn pause(status: &Value) -> Option<Pause> {
    let run_state = status.get("status").and_then(Value::as_str)?;
    let resumable = match run_state {
        "io-error" | "paused" => true,
        "internal-error" | "guest-panicked" | "shutdown" | "watchdog" => false,
        _ => return None,
    };
    Some(Pause { run_state: run_state.to_owned(), resumable })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn qmp_messages_are_parsed() {
        let shutdown = |reason: &str| {
            format!(r#"{{"event": "SHUTDOWN", "data": {{"guest": true, "reason": "{reason}"}}}}"#)
        };
        let disk_error = |action: &str| {
            format!(
                r#"{{"event": "BLOCK_IO_ERROR", "data": {{"device": "", "node-name": "volume1", "nospace": true,
                "reason": "No space left on device", "operation": "write", "action": "{action}"}}}}"#
            )
        };
        let error = DiskError {
            volume: Some(1),
            operation: "write".into(),
            reason: "No space left on device".into(),
        };
        let outside = ShutdownCause::Outside { reason: "host-signal".into() };
        let cases = [
            (
                r#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#.to_owned(),
                QmpMessage::Greeting,
            ),
            (
                r#"{"return": {}, "id": 7}"#.to_owned(),
                QmpMessage::Return { id: 7, value: json!({}) },
            ),
            (
                r#"{"id": 3, "error": {"class": "GenericError", "desc": "no"}}"#.to_owned(),
                QmpMessage::Error { id: 3, reason: "no".into() },
            ),
            (shutdown("guest-shutdown"), QmpMessage::ShuttingDown(ShutdownCause::Guest)),
            (shutdown("guest-panic"), QmpMessage::ShuttingDown(ShutdownCause::Panic)),
            (shutdown("host-signal"), QmpMessage::ShuttingDown(outside)),
            (
                r#"{"event": "GUEST_PANICKED", "data": {"action": "pause"}}"#.to_owned(),
                QmpMessage::ShuttingDown(ShutdownCause::Panic),
            ),
            (r#"{"event": "RTC_CHANGE"}"#.to_owned(), QmpMessage::Other),
            (r#"{"event": "STOP"}"#.to_owned(), QmpMessage::Stopped),
            (r#"{"event": "RESUME"}"#.to_owned(), QmpMessage::Resumed),
            (disk_error("stop"), QmpMessage::DiskError(error)),
            (disk_error("report"), QmpMessage::Other),
        ];
        for (line, expected) in cases {
            assert_eq!(parse(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn run_state_decides_whether_the_guest_can_resume() {
        assert!(is_before_start(&json!({"status": "prelaunch", "running": false})));
        assert!(!is_before_start(&json!({"status": "running"})));
        for (run_state, resumable) in [
            ("io-error", Some(true)),
            ("internal-error", Some(false)),
            ("running", None),
            // A sleeping guest is not paused.
            ("suspended", None),
        ] {
            let status = json!({"status": run_state, "running": false});
            assert_eq!(pause(&status).map(|pause| pause.resumable), resumable, "{run_state}");
        }
        assert_eq!(pause(&json!(7)), None);
        assert_eq!(command(4, "cont"), "{\"execute\":\"cont\",\"id\":4}\n");
    }

    proptest! {
        #[test]
        fn arbitrary_line_never_panics(junk: Vec<u8>, text in "\\{\"(event|return|error|QMP|id|data)\": ?(\\{|\\[|\"|[0-9])?\\PC{0,40}") {
            let _ = parse(&junk);
            let _ = parse(text.as_bytes());
        }
    }
}
