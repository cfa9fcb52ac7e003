//! What iPXE tells of its machine: the query of `GET /boot/script`.
//!
//! Old iPXE (2019, as Debian ships it) decodes a URL and encodes it again before it sends it, and leaves `&` bare when it
//! does. So a `&` that no known key follows belongs to the value before it ("Foo & Sons"), and the first value of a key wins:
//! the entry script puts MAC, UUID and architecture before the texts that vendors make up.

use crate::id::{Arch, Hardware, MacAddr, SystemUuid};

/// The longest query, in bytes.
const MAX_QUERY: usize = 4096;
/// The longest value, in bytes after decoding. SMBIOS sets no bound; real ones stay below 100.
const MAX_VALUE: usize = 512;

/// A machine that asks what to boot. Everything in it is what the machine claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptRequest {
    /// The NIC that boots.
    pub mac: MacAddr,
    /// SMBIOS system UUID.
    pub uuid: Option<SystemUuid>,
    /// SMBIOS system serial number; empty if there is none, as the two below.
    pub serial: String,
    /// SMBIOS manufacturer.
    pub manufacturer: String,
    /// SMBIOS product name.
    pub product: String,
    /// What iPXE was built for; `None` if it does not say.
    pub arch: Option<Arch>,
}

/// Why a query is no request for a script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Larger than [`MAX_QUERY`].
    #[error("the query has {0} bytes, more than {MAX_QUERY}")]
    TooLong(usize),
    /// Larger than [`MAX_VALUE`].
    #[error("`{0}` has more than {MAX_VALUE} bytes")]
    ValueTooLong(&'static str),
    /// A key without which there is no answer.
    #[error("`mac` is missing; is this request made by the script at /boot.ipxe?")]
    NoMac,
    /// A value that cannot be read.
    #[error("`{key}` is `{value}`, which is not {what}")]
    Malformed {
        /// Its key.
        key: &'static str,
        /// What came, shortened.
        value: String,
        /// What should have come.
        what: &'static str,
    },
}

const KEYS: [&str; 6] = ["mac", "uuid", "arch", "manufacturer", "product", "serial"];

impl ScriptRequest {
    /// Reads the part of the URL after `?`. Total: any text gives a request or an error, and unknown keys are ignored.
    pub fn parse(query: &str) -> Result<Self, QueryError> {
        if query.len() > MAX_QUERY {
            return Err(QueryError::TooLong(query.len()));
        }
        let values = values(query);
        let value = |key: &'static str| -> Result<String, QueryError> {
            let raw = values.iter().find(|(name, _)| *name == key).map_or("", |(_, raw)| raw);
            let text = percent_decode(raw);
            if text.len() > MAX_VALUE { Err(QueryError::ValueTooLong(key)) } else { Ok(text) }
        };
        let mac = Some(value("mac")?).filter(|text| !text.is_empty()).ok_or(QueryError::NoMac)?;
        Ok(ScriptRequest {
            mac: mac
                .parse()
                .ok()
                .filter(owned)
                .ok_or_else(|| malformed("mac", &mac, "the MAC address of a machine"))?,
            uuid: optional("uuid", &value("uuid")?, "a UUID", |text| text.parse().ok())?,
            arch: optional("arch", &value("arch")?, "an architecture that is booted here", Arch::from_ipxe)?,
            manufacturer: value("manufacturer")?,
            product: value("product")?,
            serial: value("serial")?,
        })
    }

    /// What the node ID is derived from.
    pub fn hardware(&self) -> Hardware {
        Hardware {
            uuid: self.uuid,
            manufacturer: self.manufacturer.clone(),
            product: self.product.clone(),
            serial: self.serial.clone(),
            macs: vec![self.mac],
        }
    }
}

fn owned(mac: &MacAddr) -> bool {
    mac.0 != [0; 6] && !mac.is_multicast()
}

fn malformed(key: &'static str, value: &str, what: &'static str) -> QueryError {
    QueryError::Malformed { key, value: value.chars().take(60).collect(), what }
}

fn optional<T>(
    key: &'static str,
    text: &str,
    what: &'static str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, QueryError> {
    match text {
        "" => Ok(None),
        text => read(text).map(Some).ok_or_else(|| malformed(key, text, what)),
    }
}

/// Splits at each `&` that a known key follows.
fn values(query: &str) -> Vec<(&str, String)> {
    let mut values: Vec<(&str, String)> = Vec::new();
    for piece in query.split('&') {
        let known = piece.split_once('=').filter(|(key, _)| KEYS.contains(key));
        match (known, values.last_mut()) {
            (Some((key, value)), _) => values.push((key, value.to_owned())),
            (None, Some((_, value))) => {
                value.push('&');
                value.push_str(piece);
            }
            (None, None) => {}
        }
    }
    values
}

/// RFC 3986, 2.1. A `%` without two digits stands for itself and `+` is a plus: this is no HTML form. Control characters vanish.
fn percent_decode(raw: &str) -> String {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let coded = (byte == b'%').then(|| tail.get(..2)).flatten();
        let coded = coded.and_then(|digits| std::str::from_utf8(digits).ok()).and_then(crate::id::unhex::<1>);
        match coded {
            Some([decoded]) => {
                bytes.push(decoded);
                rest = &tail[2..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_value_of_ipxe_is_read() {
        let request = ScriptRequest::parse(
            "mac=52:54:00:12:34:56&uuid=01020304-0506-0708-090a-0b0c0d0e0f10&arch=i386\
             &manufacturer=Foo%20&%20Sons&product=X%2b1+2&serial=50%",
        )
        .expect("iPXE sends this");
        assert_eq!(request.mac.to_string(), "52:54:00:12:34:56");
        assert_eq!(request.uuid.map(|uuid| uuid.to_string()), Some("01020304-0506-0708-090a-0b0c0d0e0f10".into()));
        assert_eq!(request.arch, Some(Arch::X86_64));
        assert_eq!([&*request.manufacturer, &*request.product, &*request.serial], ["Foo & Sons", "X+1+2", "50%"]);
        assert_eq!(request.hardware().macs, [request.mac]);
    }

    #[test]
    fn a_machine_without_smbios_may_ask() {
        let request = ScriptRequest::parse("mac=52-54-00-12-34-56&uuid=&arch=&manufacturer=&product=&serial=");
        assert!(request.is_ok_and(|request| request.uuid.is_none() && request.arch.is_none()));
    }

    #[test]
    fn a_vendors_text_cannot_replace_the_mac_before_it() {
        let request = ScriptRequest::parse("mac=52:54:00:12:34:56&serial=a&mac=52:54:00:00:00:01").expect("a MAC");
        assert_eq!(request.mac.to_string(), "52:54:00:12:34:56");
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        for (query, sentence) in [
            ("", "`mac` is missing"),
            ("mac=ff:ff:ff:ff:ff:ff", "not the MAC address of a machine"),
            ("mac=00:00:00:00:00:00", "not the MAC address of a machine"),
            ("mac=junk", "`mac` is `junk`"),
            ("mac=52:54:00:12:34:56&uuid=1", "not a UUID"),
            ("mac=52:54:00:12:34:56&arch=vax", "`arch` is `vax`"),
            (&format!("mac=52:54:00:12:34:56&serial={}", "x".repeat(600)), "`serial` has more than"),
            (&"x".repeat(5000), "the query has 5000 bytes"),
        ] {
            let error = ScriptRequest::parse(query).expect_err(query).to_string();
            assert!(error.contains(sentence), "{error}");
        }
    }

    proptest! {
        #[test]
        fn junk_gives_a_request_or_an_error(junk in "\\PC{0,200}", tail in "[%&=a-f0-9:\u{0}-\u{1f}]{0,80}") {
            let _ = ScriptRequest::parse(&junk);
            if let Ok(request) = ScriptRequest::parse(&format!("mac=52:54:00:12:34:56&serial={tail}")) {
                prop_assert!(!request.serial.chars().any(char::is_control));
            }
        }

        #[test]
        fn what_is_percent_encoded_comes_back(text in "[ -~äß]{0,60}") {
            let coded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
            prop_assert_eq!(percent_decode(&coded), text);
        }
    }
}
