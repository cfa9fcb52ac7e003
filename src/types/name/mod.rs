//! Names of profiles, overlays, images, bundles, groups, tokens, rules, VMs and containers. A name is
//! also a folder name, so `/` and `..` are rejected.
//!
//! | module | content |
//! | --- | --- |
//! | `label` | keys and values of labels |
//! | `hostlist` | names of nodes with ranges and wildcards: `gpu[001-040,050]`, `gpu*` |

pub(crate) mod hostlist;
pub(crate) mod label;

use crate::ParseError;
use std::{fmt, str::FromStr};

/// Maximum length of a name, in bytes.
pub const MAX_NAME: usize = 63;

fn is_name(text: &str) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= MAX_NAME
        && bytes.first().is_some_and(|c| plain(*c))
        && bytes.iter().all(|c| plain(*c) || b"-_.".contains(c))
        && !text.contains("..")
}

/// Returns whether a text is one DNS label in lower case: 1 to 63 of a-z, 0-9 and `-`. Both ends
/// must be a letter or digit.
pub fn is_host_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= MAX_NAME
        && [bytes.first(), bytes.last()]
            .into_iter()
            .all(|end| end.is_some_and(|byte| is_plain(*byte)))
        && bytes.iter().all(|byte| is_plain(*byte) || *byte == b'-')
}

/// Names that the C library or the hosts file of every node resolve to another machine, and special
/// names (RFC 6761, RFC 6762).
const RESERVED_HOST_NAMES: [&str; 16] = [
    "broadcasthost",
    "example",
    "gateway",
    "invalid",
    "ip6-allnodes",
    "ip6-allrouters",
    "ip6-localhost",
    "ip6-loopback",
    "ip6-localnet",
    "ip6-mcastprefix",
    "local",
    "localdomain",
    "localhost",
    "localhost4",
    "localhost6",
    "onion",
];

/// Returns whether a host name is reserved: programs would take it for another machine or for an
/// address. The C library reads a name of digits only, or of hexadecimal digits after `0x`, as an
/// IPv4 address.
pub fn is_reserved_host_name(text: &str) -> bool {
    let hex = text.strip_prefix("0x").filter(|digits| !digits.is_empty());
    RESERVED_HOST_NAMES.contains(&text)
        || text.bytes().all(|byte| byte.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(String);

        impl $type {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = ParseError;
            fn from_str(text: &str) -> Result<Self, ParseError> {
                if is_name(text) {
                    Ok($type(text.to_owned()))
                } else {
                    Err(ParseError::of_text(
                        text,
                        concat!("is not a valid ", $what, " name"),
                        "use 1 to 63 of a-z, 0-9, `-`, `_` and `.`, beginning with a letter or digit",
                    ))
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        super::serde_as_text!($type);
    };
}

name!(
    /// The name of a profile, which defines what a node runs.
    ProfileName,
    "profile"
);
name!(
    /// The name of an overlay: a folder under `overlays_dir`.
    OverlayName,
    "overlay"
);
name!(
    /// The name of an image: a folder under `images_dir`.
    ImageName,
    "image"
);
name!(
    /// The name of a bundle: a squashfs layer of software.
    BundleName,
    "bundle"
);
name!(
    /// The name of an API token.
    ApiTokenName,
    "token"
);
name!(
    /// The name of an `[[enroll.rule]]`, which approves machines.
    RuleName,
    "rule"
);
name!(
    /// The name of a program of the site, which meshd runs on the central node.
    ProgramName,
    "program"
);
name!(
    /// The name of a group of nodes.
    GroupName,
    "group"
);
name!(
    /// The name of a volume on the central node.
    VolumeFileName,
    "volume"
);
name!(
    /// The name of a template for VM files.
    TemplateName,
    "template"
);
name!(
    /// The name of a VM.
    VmName,
    "VM"
);
name!(
    /// The name of a container.
    ContainerName,
    "container"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_host_name_is_recognized() {
        for text in ["localhost", "ip6-loopback", "7", "2130706433", "0x7f000001", "local"] {
            assert!(is_host_name(text) && is_reserved_host_name(text), "{text:?}");
        }
        for text in ["node-1", "7a", "0x", "0xg", "localhost-1", "n7"] {
            assert!(!is_reserved_host_name(text), "{text:?}");
        }
    }

    #[test]
    fn host_name_is_one_dns_label_in_lower_case() {
        for text in ["", "-a", "a-", "A", "a.b", "a_b", "a b", "ü", &"a".repeat(MAX_NAME + 1)] {
            assert!(!is_host_name(text), "{text:?}");
        }
        for text in ["a", "7", "node-1", &"a".repeat(MAX_NAME)] {
            assert!(is_host_name(text), "{text:?}");
        }
    }

    #[test]
    fn name_with_path_syntax_is_refused() {
        for text in ["", ".", "..", "a/b", "../etc", "a..b", "A", "a b", "-x", "ü", &"a".repeat(64)]
        {
            assert!(text.parse::<OverlayName>().is_err(), "{text:?}");
        }
        for text in ["base", "alpine-3.23", "k3s_server", "0"] {
            assert!(text.parse::<OverlayName>().is_ok(), "{text:?}");
        }
    }
}
