//! URLs of the boot API: `http`, an IPv4 address, a port and a path.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddrV4},
    str::FromStr,
};

/// Maximum length of a URL in bytes.
const MAX_URL: usize = 1024;
const DEFAULT_PORT: u16 = 80;

/// A URL that needs no name server: `http://ADDRESS[:PORT]/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpUrl {
    server: SocketAddrV4,
    /// Begins with `/`; visible ASCII without `#`.
    path: String,
}

/// The text is not such a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("a URL has at most {MAX_URL} bytes")]
    Length,
    #[error("a URL begins with http://")]
    Scheme,
    #[error("a URL has an IPv4 address and an optional port, not a name")]
    Server,
    #[error("a path begins with / and has visible ASCII characters only")]
    Path,
}

impl HttpUrl {
    pub fn server(&self) -> SocketAddrV4 {
        self.server
    }

    /// Returns path and query.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns this URL with a query. Names and values must be percent-encoded.
    pub fn with_query(&self, query: &str) -> HttpUrl {
        HttpUrl { server: self.server, path: format!("{}?{query}", self.path) }
    }
}

impl FromStr for HttpUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > MAX_URL {
            return Err(UrlError::Length);
        }
        let rest = text.strip_prefix("http://").ok_or(UrlError::Scheme)?;
        let end = rest.find('/').ok_or(UrlError::Path)?;
        let (server, path) = rest.split_at(end);
        let server = match server.parse::<SocketAddrV4>() {
            Ok(server) if server.port() > 0 => server,
            _ => {
                let address = server.parse::<Ipv4Addr>().map_err(|_| UrlError::Server)?;
                SocketAddrV4::new(address, DEFAULT_PORT)
            }
        };
        let is_path = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
        if is_path { Ok(HttpUrl { server, path: path.to_owned() }) } else { Err(UrlError::Path) }
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.server, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn url_without_port_has_port_80() {
        let url: HttpUrl = "http://10.77.0.1/blob/a".parse().expect("a URL");
        assert_eq!(url.to_string(), "http://10.77.0.1:80/blob/a");
        assert_eq!(url.with_query("a=b").path(), "/blob/a?a=b");
    }

    #[test]
    fn url_with_a_name_another_scheme_or_a_blank_is_refused() {
        for text in [
            "",
            "https://10.77.0.1/",
            "http://central/",
            "http://10.77.0.1",
            "http://10.77.0.1:0/",
            "http://10.77.0.1:99999/",
            "http://u@10.77.0.1/",
            "http://[::1]/",
            "http://10.77.0.1/a b",
            "http://10.77.0.1/a\r\nHost: x",
            "http://10.77.0.1/#a",
        ] {
            assert!(text.parse::<HttpUrl>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn accepted_url_reads_as_written(text in "http://[0-9.:]{7,16}/[ -~]{0,20}|\\PC{0,40}") {
            if let Ok(url) = text.parse::<HttpUrl>() {
                prop_assert_eq!(url.to_string().parse::<HttpUrl>(), Ok(url));
            }
        }
    }
}
