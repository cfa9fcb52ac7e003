//! Basic types: IDs, hardware addresses, names, paths, secrets, time. Pure.
//!
//! | module | content |
//! | --- | --- |
//! | `architecture` | processor architectures, and what differs between them |
//! | `digest` | SHA-256 digests, which identify blobs, overlays and generations |
//! | `failpoint` | debug builds let tests stop the program at a failpoint, or disable a defence |
//! | `hardware` | hardware identifiers of firmware and Linux |
//! | `hint` | hints of errors, as data beside the message |
//! | `id` | IDs of nodes, boot sessions, tasks and requests |
//! | `name` | hostlists, and names of profiles, overlays, images, bundles, groups, tokens, rules and VMs |
//! | `path` | a relative path on a node that cannot leave its root |
//! | `secret` | a secret value that cannot be printed |
//! | `segment` | networks on which machines boot, and the addresses that meshd leases there |
//! | `text` | Unicode characters that disguise text |
//! | `time` | wall-clock time: RFC 3339 in UTC, with milliseconds |
//! | `vars` | variables of nodes, groups and profiles, which overlays use |
//!
//! Values are valid by construction: a [`SafePath`] cannot escape its root, a [`NodeId`] always has
//! eight characters, and a [`Secret`] cannot be printed.

#[doc(hidden)]
pub use serde;
#[cfg(feature = "schema")]
#[doc(hidden)]
pub use utoipa;

mod architecture;
mod digest;
pub mod failpoint;
mod hardware;
mod hint;
mod id;
mod name;
mod path;
mod secret;
mod segment;
mod text;
mod time;
mod vars;

pub use architecture::{Architecture, ArchitectureFacts, UefiFirmware};
pub use digest::Digest;
pub use hardware::bmc::{BmcDriver, BmcRequest, BootDevice, PowerAction, PowerLadder, PowerState};
pub use hardware::client_arch::ClientArch;
pub use hardware::mac::MacAddr;
pub use hardware::relay_id::{RelayIdPattern, relay_id_text};
pub use hardware::uuid::SystemUuid;
pub use hardware::vfio::{PciAddress, PciName, VfioSelector};
pub use hint::{Hint, ParseError, with_sources};
pub use id::node::{Basis, DenyList, Hardware, NodeId, is_filler};
pub use id::random::{BisectionId, BootSessionId, CorrelationId, OperationId, RolloutId, TaskId};
pub use name::hostlist::{Hostlist, MAX_HOSTS, NodePattern, matches_glob};
pub use name::label::{LabelKey, LabelValue};
pub use name::{
    ApiTokenName, BundleName, ContainerName, GroupName, ImageName, MAX_NAME, OverlayName,
    ProfileName, ProgramName, RuleName, TemplateName, VmName, VolumeFileName, is_host_name,
    is_reserved_host_name,
};
pub use path::{SafePath, is_rootfs};
pub use secret::Secret;
pub use segment::{DhcpMode, Link, Owner, Segment, Subnet};
pub use text::{LogLines, is_misleading, one_line, truncate};
pub use time::Timestamp;
pub use vars::{MAX_VAR_LIST, MAX_VAR_TEXT, VarName, VarValue, Vars};

/// Writes bytes as lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Parses exactly `N` bytes of hexadecimal in either case. Returns `None` for any other text.
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

/// Implements `Debug` by `Display`, so that logs and test failures show the text form.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_text {
    ($type:ty) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

/// Implements serde and the schema by `Display` and `FromStr`, so that a value has one text form in
/// files, messages and output.
#[macro_export]
macro_rules! serde_as_text {
    ($type:ty) => {
        impl $crate::serde::Serialize for $type {
            fn serialize<S: $crate::serde::Serializer>(
                &self,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> $crate::serde::Deserialize<'de> for $type {
            fn deserialize<D: $crate::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as $crate::serde::Deserialize>::deserialize(
                    deserializer,
                )?;
                text.parse().map_err($crate::serde::de::Error::custom)
            }
        }
        $crate::schema_as_text!($type);
    };
}

/// Implements the JSON Schema of a type that is a text in JSON.
#[cfg(feature = "schema")]
#[doc(hidden)]
#[macro_export]
macro_rules! schema_as_text {
    ($type:ty) => {
        impl $crate::utoipa::PartialSchema for $type {
            fn schema() -> $crate::utoipa::openapi::RefOr<$crate::utoipa::openapi::schema::Schema> {
                <String as $crate::utoipa::PartialSchema>::schema()
            }
        }
        impl $crate::utoipa::ToSchema for $type {}
    };
}

#[cfg(not(feature = "schema"))]
#[doc(hidden)]
#[macro_export]
macro_rules! schema_as_text {
    ($type:ty) => {};
}
