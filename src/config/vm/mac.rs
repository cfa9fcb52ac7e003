//! MAC addresses of NICs that have none in their VM file.

use crate::MacPrefix;
use meshd_types::{Digest, MacAddr, SystemUuid};

/// The same machine has the same NICs wherever it runs: the address follows from UUID and place of the NIC. `attempt` counts those
/// before it that others had.
pub fn derived_mac(prefix: &MacPrefix, uuid: SystemUuid, index: usize, attempt: u32) -> MacAddr {
    let (index, attempt) = (index.to_be_bytes(), attempt.to_be_bytes());
    let mut fields = vec![b"mesh-vm-mac/1".as_slice(), &uuid.0, &index];
    if attempt != [0; 4] {
        fields.push(&attempt);
    }
    prefix.with(&Digest::of_fields(fields).0)
}
