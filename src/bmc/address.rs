//! Host and port of a BMC.

/// Host and port of a BMC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BmcAddress {
    /// Host name, IPv4 address, or IPv6 address without brackets.
    pub host: String,
    /// `None` means the default of the protocol.
    pub port: Option<u16>,
}

/// Parses `host`, `host:port`, an IPv6 address, or `[IPv6]:port`. Returns `None` for any other
/// text.
pub fn parse_address(text: &str) -> Option<BmcAddress> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None if text.parse::<std::net::Ipv6Addr>().is_ok() => (text, None),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_host_char = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
    let is_host = !host.is_empty() && host.len() <= 255 && host.chars().all(is_host_char);
    // A host that begins with `-` would be an option of a program.
    if !is_host || host.starts_with('-') {
        return None;
    }
    let port = port.map(|port| port.parse::<u16>().ok().filter(|port| *port > 0));
    match port {
        Some(None) => None,
        port => Some(BmcAddress { host: host.to_owned(), port: port.flatten() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_a_host_and_perhaps_a_port() {
        let parsed = |text| parse_address(text).map(|it| (it.host, it.port));
        let host = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(parsed("bmc-1.example"), host("bmc-1.example", None));
        assert_eq!(parsed("10.1.0.7:6230"), host("10.1.0.7", Some(6230)));
        assert_eq!(parsed("fd00::7"), host("fd00::7", None));
        assert_eq!(parsed("[fd00::7]:443"), host("fd00::7", Some(443)));
        assert_eq!(parsed("[fd00::7]"), host("fd00::7", None));
        for text in ["", "-v", "a b", "a:0", "a:65536", "[x]:1", "[fd00::7]1", "a/b", "a:1:2x"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
