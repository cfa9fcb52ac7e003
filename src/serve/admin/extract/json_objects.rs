//! Reads JSON into types and refuses an array in place of an object. `serde` alone takes the values
//! of an array as the fields of a structure, in their order.

use serde::{
    Deserializer,
    de::{
        DeserializeOwned, Error as _, IntoDeserializer, Unexpected, Visitor,
        value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::{Error, Value};

/// Reads a request body.
pub(crate) fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    // The first reading reports lines, columns and duplicate fields, which a `Value` no longer has.
    serde_json::from_slice::<T>(bytes)?;
    from_value(serde_json::from_slice(bytes)?)
}

/// Reads a part of a request body.
pub(crate) fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    T::deserialize(Objects(value))
}

/// A value whose structures and maps are JSON objects, at any depth.
struct Objects(Value);

impl Objects {
    fn object<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(_) => Err(Error::invalid_type(Unexpected::Seq, &"a JSON object")),
            _ => self.deserialize_any(visitor),
        }
    }
}

impl IntoDeserializer<'_, Error> for Objects {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Objects {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => {
                SeqDeserializer::new(items.into_iter().map(Objects)).deserialize_any(visitor)
            }
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(name, value)| (name, Objects(value)));
                MapDeserializer::new(fields).deserialize_any(visitor)
            }
            scalar => scalar.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.object(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.object(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(name, value)| (name, Objects(value)));
                MapAccessDeserializer::new(MapDeserializer::new(fields))
                    .deserialize_enum(name, variants, visitor)
            }
            scalar => scalar.deserialize_enum(name, variants, visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct
        identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_api::{
        AcceptNic, Approve, BulkRequest, ChangeVars, CreateApiToken, CreateVm, RunTask,
    };
    use meshd_model::fleet::LabelChange;
    use serde_json::json;

    #[test]
    fn array_in_place_of_an_object_is_refused_at_any_depth() {
        fn refused<T: DeserializeOwned>(value: Value) {
            let bytes = value.to_string();
            assert!(serde_json::from_str::<T>(&bytes).is_ok(), "serde takes it: {bytes}");
            let error =
                from_slice::<T>(bytes.as_bytes()).err().unwrap_or_else(|| panic!("{bytes}"));
            assert!(error.to_string().contains("expected a JSON object"), "{bytes}: {error}");
        }
        refused::<CreateApiToken>(json!(["rr", "viewer", 60]));
        refused::<AcceptNic>(json!(["02:00:00:00:00:01"]));
        refused::<Option<Approve>>(json!([true]));
        refused::<LabelChange>(json!([{}, []]));
        refused::<BulkRequest>(json!({ "nodes": [["0123abcd", "revision"]] }));
    }

    #[test]
    fn objects_are_read_as_before() {
        let vars: ChangeVars =
            from_slice(br#"{"set":{"a":true,"b":7,"c":"x","d":["y"]},"unset":["e"]}"#)
                .expect("valid");
        assert_eq!((vars.set.len(), vars.unset.len()), (4, 1));
        let labels: LabelChange =
            from_slice(br#"{"set":{"rack":"a"},"unset":["feed"]}"#).expect("valid");
        assert_eq!(labels.set.len(), 1);
        for user in [r#""root""#, r#"{"uid":1000}"#] {
            let text =
                format!(r#"{{"group":"g","argv":["a","b"],"launcher":"none","user":{user}}}"#);
            assert_eq!(from_slice::<RunTask>(text.as_bytes()).expect("valid").argv.len(), 2);
        }
        let vm = meshd_config::vm::parse(
            "name = \"v\"\nvcpus = 2\nmemory = \"1G\"\n[[volume]]\nname = \"d\"\nformat = \"raw\"\ndisk = \"SN-1\"\n[[nic]]\nbridge = \"br1\"\n",
            std::path::Path::new("vm.toml"),
        );
        let vm = vm.unwrap_or_else(|faults| panic!("{faults}"));
        let order = CreateVm { vm, node: None, start: true };
        let text = serde_json::to_vec(&order).expect("plain data");
        assert_eq!(from_slice::<CreateVm>(&text).expect("valid").vm, order.vm);
        for faulty in [r#"{"set":{},"set":{}}"#, r#"{"sets":{}}"#, "{", "", r#"{"set":[]}"#] {
            assert!(from_slice::<ChangeVars>(faulty.as_bytes()).is_err(), "{faulty}");
        }
    }
}
