//! JSON Schemas of values that have several JSON types.

use meshd_proto::task::MIN_UID;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};

fn of(kind: Type) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(kind)
}

/// Returns the schema of the user of a task.
pub(crate) fn task_user() -> Schema {
    let name = of(Type::String).enum_values(Some(["default", "root"]));
    let uid = of(Type::Integer).minimum(Some(MIN_UID)).maximum(Some(u32::MAX));
    let uid = of(Type::Object).property("uid", uid).required("uid");
    Schema::from(OneOfBuilder::new().item(name).item(uid))
}
