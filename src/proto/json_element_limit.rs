//! Counts the elements of untrusted JSON before parsing: a list of empty records takes a hundred
//! times its size in memory.

use serde::de::{DeserializeOwned, DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use std::{cell::Cell, fmt};

/// Maximum entries of one list or map: the maximum number of devices of a kind.
pub const MAX_LIST: usize = super::MAX_DEVICES;
/// Maximum records in one message. The largest permitted facts have three quarters of it.
pub const MAX_RECORDS: usize = 8 * 1024;
/// Maximum values in one message, including field names.
pub const MAX_VALUES: usize = 256 * 1024;
/// Maximum length of a text in bytes: four times the size of a sysfs file.
pub const MAX_TEXT: usize = 16 * 1024;

/// Why a message is refused. It quotes no content, which may be secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("invalid JSON for this message")]
    Invalid,
    #[error("message exceeds a limit: {0}")]
    TooMuch(&'static str),
}

/// Parses a message; one that exceeds a limit is refused before anything is allocated for it.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, ReadError> {
    let counts = Counts::default();
    let mut json = serde_json::Deserializer::from_slice(text);
    if Walk(&counts).deserialize(&mut json).and_then(|()| json.end()).is_err() {
        return Err(counts.excess.get().map_or(ReadError::Invalid, ReadError::TooMuch));
    }
    serde_json::from_slice(text).map_err(|_| ReadError::Invalid)
}

#[derive(Default)]
struct Counts {
    values: Cell<usize>,
    records: Cell<usize>,
    /// The exceeded limit.
    excess: Cell<Option<&'static str>>,
}

/// Visits a message without storing it.
struct Walk<'a>(&'a Counts);

impl Walk<'_> {
    fn limit<E: Error>(&self, fits: bool, excess: &'static str) -> Result<(), E> {
        if fits {
            return Ok(());
        }
        self.0.excess.set(Some(excess));
        Err(E::custom(excess))
    }

    fn value<E: Error>(&self) -> Result<(), E> {
        self.0.values.update(|values| values + 1);
        self.limit(self.0.values.get() <= MAX_VALUES, "too many values")
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.value()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.value()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.value()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.value()
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.value()
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.limit(text.len() <= MAX_TEXT, "a text is too long")?;
        self.value()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.value()?;
        let mut entries = 0;
        while list.next_element_seed(Walk(self.0))?.is_some() {
            entries += 1;
            self.limit(entries <= MAX_LIST, "a list is too long")?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.value()?;
        self.0.records.update(|records| records + 1);
        self.limit(self.0.records.get() <= MAX_RECORDS, "too many records")?;
        let mut entries = 0;
        while map.next_key_seed(Walk(self.0))?.is_some() {
            map.next_value_seed(Walk(self.0))?;
            entries += 1;
            self.limit(entries <= MAX_LIST, "a record has too many fields")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Facts, FromAgent, MAX_UNITS, NicFacts, PciFacts, SriovFacts, UnitFacts};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn read_value(value: &Value) -> Result<Value, ReadError> {
        read(value.to_string().as_bytes())
    }

    #[test]
    fn message_above_size_limits_is_refused() {
        let device =
            PciFacts { sriov: Some(SriovFacts { total: 8, enabled: 8 }), ..PciFacts::default() };
        let members = vec![device.clone(); MAX_LIST / MAX_UNITS];
        let facts = Facts {
            pci: vec![device; MAX_LIST],
            nics: vec![NicFacts::default(); MAX_LIST],
            units: vec![UnitFacts { members, ..UnitFacts::default() }; MAX_UNITS],
            ..Facts::default()
        };
        let text = serde_json::to_vec(&facts).unwrap();
        assert_eq!(read(&text), Ok(facts));

        let text = |length: usize| json!({ "a": "x".repeat(length) });
        assert!(read_value(&text(MAX_TEXT)).is_ok() && read_value(&text(MAX_TEXT + 1)).is_err());
        let list = |length: usize| json!([vec![0; length]]);
        assert!(read_value(&list(MAX_LIST)).is_ok());
        assert_eq!(read_value(&list(MAX_LIST + 1)), Err(ReadError::TooMuch("a list is too long")));
        let records = json!(vec![vec![json!({}); MAX_LIST]; 1 + MAX_RECORDS / MAX_LIST]);
        assert_eq!(read_value(&records), Err(ReadError::TooMuch("too many records")));
        let values = json!(vec![vec![0; MAX_LIST]; 1 + MAX_VALUES / MAX_LIST]);
        assert_eq!(read_value(&values), Err(ReadError::TooMuch("too many values")));
        let fields: serde_json::Map<_, _> =
            (0..=MAX_LIST).map(|n| (n.to_string(), json!(0))).collect();
        assert_eq!(
            read_value(&fields.into()),
            Err(ReadError::TooMuch("a record has too many fields"))
        );
    }

    #[test]
    fn invalid_text_is_refused_and_not_echoed() {
        for text in ["", "{", "[1] 2", "{\"kind\":\"secret\"}", "\"secret\""] {
            let refused = read::<FromAgent>(text.as_bytes()).expect_err(text);
            assert!(
                refused == ReadError::Invalid && !refused.to_string().contains("secret"),
                "{text}"
            );
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            "\\PC{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 200, 10, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..10).prop_map(Value::from),
                prop::collection::vec(("\\PC{0,8}", inner), 0..10)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn small_message_round_trips_and_nothing_panics(value in any_json(), bytes: Vec<u8>) {
            prop_assert_eq!(read_value(&value), Ok(value));
            let _ = read::<Value>(&bytes);
        }
    }
}
