//! QEMU's control protocol (QMP), one line of JSON a message: what is read of it, and what is said. Pure and total.

use super::machine::Leaving;
use serde_json::{Value, json};

/// Longest line that is read, in bytes. What is asked here is answered in a few KiB.
pub const MAX_LINE: usize = 256 * 1024;
/// Longest text of QEMU that is repeated, in characters.
const MAX_TEXT: usize = 300;

/// One message of QEMU.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// It is there, and waits for `qmp_capabilities`.
    Greeting,
    /// A command was done.
    Done {
        /// Which.
        id: u64,
        /// What it gave.
        value: Value,
    },
    /// A command was not done.
    Refused {
        /// Which.
        id: u64,
        /// Why.
        reason: String,
    },
    /// It says why it is about to end.
    Leaving(Leaving),
    /// Anything else: an event that means nothing here, or no message at all.
    Other,
}

/// Reads one line.
pub fn read(line: &[u8]) -> Line {
    let Ok(Value::Object(mut message)) = serde_json::from_slice::<Value>(line) else { return Line::Other };
    let text = |value: Option<&Value>| -> String {
        value.and_then(Value::as_str).unwrap_or_default().chars().take(MAX_TEXT).collect()
    };
    let id = message.get("id").and_then(Value::as_u64).unwrap_or(0);
    if let Some(value) = message.remove("return") {
        return Line::Done { id, value };
    }
    if let Some(error) = message.get("error") {
        return Line::Refused { id, reason: text(error.get("desc")) };
    }
    let data = message.get("data");
    match message.get("event").and_then(Value::as_str) {
        Some("SHUTDOWN") => Line::Leaving(leaving(text(data.and_then(|data| data.get("reason"))))),
        Some("GUEST_PANICKED") => Line::Leaving(Leaving::Panic),
        None if message.contains_key("QMP") => Line::Greeting,
        _ => Line::Other,
    }
}

/// The words of `ShutdownCause` in QEMU's qapi/run-state.json.
fn leaving(reason: String) -> Leaving {
    match reason.as_str() {
        "guest-shutdown" | "guest-reset" => Leaving::Guest,
        "guest-panic" => Leaving::Panic,
        _ => Leaving::Outside { reason },
    }
}

/// A command without arguments, as it goes over the socket.
pub fn command(id: u64, name: &str) -> String {
    format!("{}\n", json!({ "execute": name, "id": id }))
}

/// Of the answer to `query-status`: the guest has not begun to run.
pub fn is_before_start(status: &Value) -> bool {
    status.get("status").and_then(Value::as_str) == Some("prelaunch")
}

/// Of the answer to `query-chardev`: somebody listens to this character device.
pub fn is_listened_to(chardevs: &Value, label: &str) -> bool {
    let all = chardevs.as_array().map(Vec::as_slice).unwrap_or_default();
    let ours = all.iter().find(|one| one.get("label").and_then(Value::as_str) == Some(label));
    let name = ours.and_then(|one| one.get("filename")).and_then(Value::as_str);
    name.is_some_and(|name| !name.starts_with("disconnected"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(text: &str) -> Line {
        read(text.as_bytes())
    }

    #[test]
    fn what_qemu_says_is_understood() {
        assert_eq!(one(r#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#), Line::Greeting);
        assert_eq!(one(r#"{"return": {}, "id": 7}"#), Line::Done { id: 7, value: json!({}) });
        let refused = one(r#"{"id": 3, "error": {"class": "GenericError", "desc": "no"}}"#);
        assert_eq!(refused, Line::Refused { id: 3, reason: "no".into() });
        let left =
            |reason: &str| one(&format!(r#"{{"event": "SHUTDOWN", "data": {{"guest": true, "reason": "{reason}"}}}}"#));
        assert_eq!(left("guest-shutdown"), Line::Leaving(Leaving::Guest));
        assert_eq!(left("guest-panic"), Line::Leaving(Leaving::Panic));
        assert_eq!(left("host-signal"), Line::Leaving(Leaving::Outside { reason: "host-signal".into() }));
        assert_eq!(one(r#"{"event": "GUEST_PANICKED", "data": {"action": "pause"}}"#), Line::Leaving(Leaving::Panic));
        assert_eq!(one(r#"{"event": "RTC_CHANGE"}"#), Line::Other);
    }

    #[test]
    fn answers_are_looked_through() {
        assert!(is_before_start(&json!({"status": "prelaunch", "running": false})));
        assert!(!is_before_start(&json!({"status": "running"})));
        let chardevs =
            json!([{"label": "qmp", "filename": "unix:/a"}, {"label": "serial0", "filename": "disconnected:unix:/b"}]);
        assert!(is_listened_to(&chardevs, "qmp") && !is_listened_to(&chardevs, "serial0"));
        assert!(!is_listened_to(&json!(null), "qmp") && !is_listened_to(&chardevs, "none"));
        assert_eq!(command(4, "cont"), "{\"execute\":\"cont\",\"id\":4}\n");
    }

    proptest! {
        #[test]
        fn any_line_is_read(junk: Vec<u8>, text in "\\{\"(event|return|error|QMP|id|data)\": ?(\\{|\\[|\"|[0-9])?\\PC{0,40}") {
            let _ = read(&junk);
            let _ = read(text.as_bytes());
        }
    }
}
