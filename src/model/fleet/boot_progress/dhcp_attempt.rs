//! DHCP requests of one program in one boot: how often it asked, and for how long.

use meshd_types::{ClientArch, Timestamp};
use serde::{Deserialize, Serialize};

/// Maximum number of programs in the record of one boot.
pub const MAX_DHCP_ATTEMPTS: usize = 8;
/// Maximum number of seconds that a client can have asked for. Firmware with the wrong byte order
/// sends more.
const MAX_WAITED_S: u16 = 600;

/// The client of a DHCP exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DhcpClient {
    /// Firmware that is not iPXE.
    Firmware,
    /// iPXE, from flash or just loaded.
    Ipxe,
    Os,
}

impl DhcpClient {
    /// Returns the name for people.
    pub fn title(self) -> &'static str {
        match self {
            DhcpClient::Firmware => "the firmware",
            DhcpClient::Ipxe => "iPXE",
            DhcpClient::Os => "Linux",
        }
    }
}

/// A DHCP request, as far as it explains the time of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DhcpRequest {
    pub client: DhcpClient,
    /// Option 93.
    pub arch: Option<ClientArch>,
    pub is_discover: bool,
    /// Field `secs`: seconds since the client began to ask.
    pub secs: u16,
}

/// The requests of one program for one architecture. Firmware that tries HTTP boot and then PXE
/// has two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DhcpAttempt {
    pub client: DhcpClient,
    /// Option 93.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<ClientArch>,
    /// Time of the first request.
    pub first: Timestamp,
    /// Time of the last DISCOVER.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_discover: Option<Timestamp>,
    /// Number of DISCOVERs.
    pub discovers: u32,
    /// Seconds for which the client had asked before the first request arrived, by its own count.
    #[serde(default)]
    pub waited_s: u16,
}

impl DhcpAttempt {
    fn new(request: DhcpRequest, now: Timestamp) -> Self {
        let waited_s = if request.secs <= MAX_WAITED_S { request.secs } else { 0 };
        DhcpAttempt {
            client: request.client,
            arch: request.arch,
            first: now,
            last_discover: None,
            discovers: 0,
            waited_s,
        }
    }
}

/// Adds a request to the records of a boot.
pub(super) fn record_request(
    attempts: &mut Vec<DhcpAttempt>,
    request: DhcpRequest,
    now: Timestamp,
) {
    let is_same =
        |attempt: &DhcpAttempt| (attempt.client, attempt.arch) == (request.client, request.arch);
    let index = attempts.iter().position(is_same).unwrap_or_else(|| {
        if attempts.len() < MAX_DHCP_ATTEMPTS {
            attempts.push(DhcpAttempt::new(request, now));
        }
        attempts.len() - 1
    });
    let attempt = attempts.get_mut(index).filter(|attempt| is_same(attempt));
    if let Some(attempt) = attempt.filter(|_| request.is_discover) {
        attempt.last_discover = Some(now);
        attempt.discovers = attempt.discovers.saturating_add(1);
    }
}
