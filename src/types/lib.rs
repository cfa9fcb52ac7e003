//! Step 0, vocabulary: the words that every other module speaks, each with its rules built in.
//!
//! A value of one of these types is valid by construction: a [`SafePath`] cannot escape, a [`NodeId`] is always eight
//! characters, a [`Secret`] cannot be printed. Everything here is pure.

#[doc(hidden)]
pub use serde;

mod arch;
mod correlation;
mod digest;
pub mod fail;
mod job;
mod mac;
mod name;
mod node;
mod path;
mod secret;
mod session;
mod time;
mod uuid;
mod vars;
mod vfio;

pub use arch::{Arch, ClientArch};
pub use correlation::{CorrelationId, ParseCorrelationIdError};
pub use digest::{Digest, ParseDigestError};
pub use job::{JobId, ParseJobIdError};
pub use mac::{MacAddr, ParseMacError};
pub use name::{
    ApiTokenName, BundleName, GroupName, ImageName, NameError, OverlayName, ProfileName, RuleName, TemplateName,
    VmName, VolumeFileName,
};
pub use node::{Basis, DenyList, Hardware, NodeId, ParseNodeIdError, is_filler};
pub use path::{PathError, SafePath};
pub use secret::Secret;
pub use session::{BootSessionId, ParseBootSessionIdError};
pub use time::{ParseTimestampError, Timestamp};
pub use uuid::{ParseUuidError, SystemUuid};
pub use vars::{MAX_VAR_LIST, MAX_VAR_TEXT, VarName, VarNameError, VarValue, Vars};
pub use vfio::{ParsePciAddressError, ParseVfioError, PciAddress, PciName, VfioSelector};

/// Writes bytes as lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Reads exactly `N` bytes of hexadecimal, either case; `None` for anything else.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.as_bytes();
    if text.len() != N * 2 {
        return None;
    }
    let mut out = [0u8; N];
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        let high = (pair[0] as char).to_digit(16)?;
        let low = (pair[1] as char).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(out)
}

/// Implements serde by `Display` and `FromStr`, so that what is stored, sent and shown is one text.
#[macro_export]
macro_rules! serde_as_text {
    ($type:ty) => {
        impl $crate::serde::Serialize for $type {
            fn serialize<S: $crate::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> $crate::serde::Deserialize<'de> for $type {
            fn deserialize<D: $crate::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as $crate::serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err($crate::serde::de::Error::custom)
            }
        }
    };
}
