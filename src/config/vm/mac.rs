//! MAC addresses of NICs that have none in their VM file.

use crate::MacPrefix;
use meshd_types::{Digest, MacAddr, SystemUuid};

/// Derives a MAC address from the UUID of a VM and the index of the NIC, so that it is the same on
/// every node. `attempt` counts earlier addresses that were taken.
pub fn derived_mac(prefix: &MacPrefix, uuid: SystemUuid, index: usize, attempt: u32) -> MacAddr {
    let index = index.to_be_bytes();
    let attempt = attempt.to_be_bytes();
    let mut fields = vec![b"mesh-vm-mac/1".as_slice(), &uuid.0, &index];
    if attempt != [0; 4] {
        fields.push(&attempt);
    }
    prefix.with(&Digest::of_fields(fields).0)
}
