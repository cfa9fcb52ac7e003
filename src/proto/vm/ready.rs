//! When a guest is ready: a TCP port of it answers, or its SSH server does.

use meshd_types::{ParseError, serde_as_text};
use std::{fmt, num::NonZero, str::FromStr};

/// Port of SSH.
const SSH_PORT: NonZero<u16> = NonZero::new(22).expect("not 0");

/// What the node of a VM waits for: `ssh`, `ssh:2222` or `tcp:8080`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyCheck {
    /// The port accepts connections.
    Tcp(NonZero<u16>),
    /// The port shows the banner of an SSH server.
    Ssh(NonZero<u16>),
}

impl ReadyCheck {
    pub fn port(self) -> u16 {
        match self {
            ReadyCheck::Tcp(port) | ReadyCheck::Ssh(port) => port.get(),
        }
    }
}

impl FromStr for ReadyCheck {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
        let port = |port: &str| port.parse().ok().filter(|_| plain(port));
        let check = match text.split_once(':') {
            None if text == "ssh" => Some(ReadyCheck::Ssh(SSH_PORT)),
            Some(("ssh", text)) => port(text).map(ReadyCheck::Ssh),
            Some(("tcp", text)) => port(text).map(ReadyCheck::Tcp),
            _ => None,
        };
        let hint = "write \"ssh\", \"ssh:PORT\" or \"tcp:PORT\"";
        check.ok_or_else(|| ParseError::of_text(text, "is no readiness check", hint))
    }
}

impl fmt::Display for ReadyCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadyCheck::Ssh(SSH_PORT) => f.write_str("ssh"),
            ReadyCheck::Ssh(port) => write!(f, "ssh:{port}"),
            ReadyCheck::Tcp(port) => write!(f, "tcp:{port}"),
        }
    }
}

serde_as_text!(ReadyCheck);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_check_round_trips_and_names_a_port() {
        for (text, port) in [("ssh", 22), ("ssh:2222", 2222), ("tcp:80", 80), ("tcp:65535", 65535)]
        {
            let check: ReadyCheck = text.parse().expect("a check");
            assert_eq!((check.to_string().as_str(), check.port()), (text, port));
        }
        assert_eq!("ssh:22".parse::<ReadyCheck>().map(|check| check.to_string()), Ok("ssh".into()));
        for text in ["", "tcp", "tcp:", "tcp:0", "tcp:65536", "tcp:+80", "http:80", "ssh:22:1"] {
            assert!(text.parse::<ReadyCheck>().is_err(), "{text}");
        }
    }
}
