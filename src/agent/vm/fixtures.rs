//! Specifications for unit tests.

use meshd_proto::vm::VmSpec;
use serde_json::{Value, json};

/// Returns a minimal specification with additional or other keys.
pub fn spec(more: Value) -> VmSpec {
    let mut spec = json!({ "name": "a", "uuid": "11223344-5566-7788-99aa-bbccddeeff00", "vcpus": 1, "memory": "1G" });
    spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    serde_json::from_value(spec).expect("a specification")
}

/// Returns a NIC with this last digit of its MAC address.
pub fn nic(last: u8, bridge: &str, address: &str) -> Value {
    json!({ "mac": format!("52:54:00:00:00:0{last}"), "bridge": bridge, "address": address })
}
