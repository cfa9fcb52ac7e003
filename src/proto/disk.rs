//! Disks of a node that have an owner: their identity, and how far they are used.

use crate::text::text_type;
use serde::{Deserialize, Serialize};

/// Keywords of VM files that cannot be disk identities.
const DISK_WORDS: [&str; 2] = ["slot", "nearest"];

text_type!(
    /// WWID or serial number of a disk. Kernel names such as `sda` are not accepted: the next boot
    /// may assign them to another disk.
    DiskIdentity,
    "identity of a disk",
    "write the wwid or the serial number that `meshd node show` lists; kernel names such as sda change hands",
    |text| {
        let printable = text.bytes().all(|c| (0x20..0x7f).contains(&c)) && text.trim() == text;
        let word = text.split(':').next().is_some_and(|first| DISK_WORDS.contains(&first));
        (4..=256).contains(&text.len()) && printable && !text.contains('/') && !word && !is_kernel_name(text)
    }
);

/// Returns true for kernel names, which depend on the order of discovery: `sda`, `vdb3`, `nvme0n1`,
/// `dm-0`.
fn is_kernel_name(text: &str) -> bool {
    let rest = |prefix: &str| text.strip_prefix(prefix);
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let numbered =
        ["dm-", "md", "loop", "sr", "mmcblk"].iter().any(|prefix| rest(prefix).is_some_and(digits));
    let lettered = ["sd", "vd", "xvd", "hd"].iter().any(|prefix| {
        rest(prefix).is_some_and(|rest| {
            let name = rest.trim_end_matches(|c: char| c.is_ascii_digit());
            (1..=2).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_lowercase())
        })
    });
    let nvme =
        rest("nvme").and_then(|rest| rest.split_once('n')).is_some_and(|(controller, rest)| {
            let namespace = rest.split('p').next().unwrap_or_default();
            controller.bytes().all(|c| c.is_ascii_digit() || c == b'c') && digits(namespace)
        });
    numbered || lettered || nvme
}

/// The extent to which its owner uses a disk of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskUse {
    /// The write of its image has begun.
    Begun,
    /// The image is written, or the owner used the disk without an image. From now on only the
    /// owner writes.
    Done,
}
