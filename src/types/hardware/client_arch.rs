//! DHCP option 93.

/// The received value of DHCP option 93, from the IANA registry "Processor Architecture Types" (RFC
/// 5970).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct ClientArch(pub u16);

impl ClientArch {
    /// Legacy BIOS; also assumed for a client without option 93.
    pub const BIOS: ClientArch = ClientArch(0);

    /// Returns true if the firmware boots by HTTP.
    pub fn is_http(self) -> bool {
        matches!(self.0, 15..=20 | 23 | 24 | 26 | 28 | 30)
    }
}
