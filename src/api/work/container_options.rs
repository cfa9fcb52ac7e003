//! Options of a container as people write and read them, on the command line and in the web UI. An
//! error says what to write.

use super::container::MountVolume;
use meshd_proto::{
    container::{ContainerRestart, HealthProbe, PublishedPort, ReplicaMount},
    vm::ByteSize,
};

/// Restarts of `on-failure` without a number.
const DEFAULT_RESTARTS: u16 = 5;

/// Parses a published port: `PORT` or `NODE-PORT:PORT`.
///
/// # Errors
/// A port is missing or out of range.
pub fn parse_port(text: &str) -> Result<PublishedPort, String> {
    let number = |text: &str| {
        let port = text.parse::<u16>().ok().filter(|port| *port > 0);
        port.ok_or_else(|| "write PORT or NODE-PORT:PORT, each from 1 to 65535".to_owned())
    };
    let (node, container) = text.split_once(':').unwrap_or((text, text));
    Ok(PublishedPort { node: number(node)?, container: number(container)? })
}

/// Parses a mount: `VOLUME:PATH`.
///
/// # Errors
/// The volume or the absolute path is missing.
pub fn parse_mount(text: &str) -> Result<MountVolume, String> {
    let (volume, path) = text
        .split_once(':')
        .filter(|(volume, path)| !volume.is_empty() && path.starts_with('/'))
        .ok_or_else(|| "write VOLUME:PATH, such as site-data:/data".to_owned())?;
    Ok(MountVolume { volume: volume.to_owned(), path: path.to_owned() })
}

/// Parses a variable: `NAME=VALUE`.
///
/// # Errors
/// There is no `=`.
pub fn parse_variable(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').ok_or_else(|| "write NAME=VALUE".to_owned())?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}

/// Parses a user: `UID` or `UID:GID`.
///
/// # Errors
/// One of them is no number.
pub fn parse_user(text: &str) -> Result<(u32, Option<u32>), String> {
    let number = |text: &str| text.parse().map_err(|_| "write UID or UID:GID".to_owned());
    match text.split_once(':') {
        Some((uid, gid)) => Ok((number(uid)?, Some(number(gid)?))),
        None => Ok((number(text)?, None)),
    }
}

/// Parses a decimal number of CPUs with up to three digits after the point, into thousandths.
///
/// # Errors
/// The text is no such number, or it is out of range.
pub fn parse_cpu_millis(text: &str) -> Result<u32, String> {
    let error = || "write a number of CPUs from 0.01 to 1024, such as 0.5".to_owned();
    let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
    let is_plain = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if rest.is_empty() || rest.len() > 3 || !is_plain(whole) || !is_plain(rest) {
        return Err(error());
    }
    let whole: u32 = whole.parse().map_err(|_| error())?;
    let rest: u32 = format!("{rest:0<3}").parse().map_err(|_| error())?;
    let millis = whole.checked_mul(1000).and_then(|millis| millis.checked_add(rest));
    millis.filter(|millis| (10..=1_024_000).contains(millis)).ok_or_else(error)
}

/// Parses a size into MiB, rounded up.
///
/// # Errors
/// The text is no size.
pub fn parse_mib(text: &str) -> Result<u32, String> {
    let size: ByteSize = text.parse().map_err(|_| "write a size, such as 256M or 2G".to_owned())?;
    Ok(to_mib(size))
}

/// Converts into MiB, rounded up.
pub fn to_mib(size: ByteSize) -> u32 {
    u32::try_from(size.bytes().div_ceil(1 << 20)).unwrap_or(u32::MAX)
}

/// Parses a restart policy: `always`, `never`, `on-failure` or `on-failure:N`.
///
/// # Errors
/// The text is none of them.
pub fn parse_restart(text: &str) -> Result<ContainerRestart, String> {
    match text {
        "always" => Ok(ContainerRestart::Always),
        "never" => Ok(ContainerRestart::Never),
        "on-failure" => Ok(ContainerRestart::OnFailure { max: DEFAULT_RESTARTS }),
        text => {
            let max = text.strip_prefix("on-failure:").and_then(|max| max.parse().ok());
            max.map(|max| ContainerRestart::OnFailure { max })
                .ok_or_else(|| "write always, never, on-failure or on-failure:N".to_owned())
        }
    }
}

/// Parses a probe: `tcp:PORT`, `http:PORT/PATH` or `exec:PROGRAM ARGUMENT`.
///
/// # Errors
/// The text is none of them.
pub fn parse_probe(text: &str) -> Result<HealthProbe, String> {
    let error = || "write tcp:PORT, http:PORT/PATH or \"exec:PROGRAM ARGUMENT\"".to_owned();
    let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(error);
    match text.split_once(':') {
        Some(("tcp", port)) => Ok(HealthProbe::Tcp { port: number(port)? }),
        Some(("http", target)) => {
            let (port, path) = target.split_once('/').unwrap_or((target, ""));
            Ok(HealthProbe::Http { port: number(port)?, path: format!("/{path}") })
        }
        Some(("exec", argv)) => {
            let argv: Vec<String> = argv.split_whitespace().map(str::to_owned).collect();
            if argv.is_empty() { Err(error()) } else { Ok(HealthProbe::Exec { argv }) }
        }
        _ => Err(error()),
    }
}

/// Returns published ports as [`parse_port`] reads them.
pub fn port_words(ports: &[PublishedPort]) -> String {
    let words = ports.iter().map(|port| format!("{}:{}", port.node, port.container));
    words.collect::<Vec<_>>().join(" ")
}

/// Returns mounts as [`parse_mount`] reads them, with the begin of each digest.
pub fn mount_words(mounts: &[ReplicaMount]) -> String {
    let words = mounts.iter().map(|mount| format!("{}:{}", mount.volume.short(), mount.path));
    words.collect::<Vec<_>>().join(" ")
}

/// Returns a number of CPUs: `0.5`.
pub fn cpu_words(cpu_millis: u32) -> String {
    let words = format!("{}.{:03}", cpu_millis / 1000, cpu_millis % 1000);
    words.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns when a container restarts.
pub fn restart_words(restart: ContainerRestart) -> String {
    match restart {
        ContainerRestart::Always => "always".to_owned(),
        ContainerRestart::Never => "never".to_owned(),
        ContainerRestart::OnFailure { max: 1 } => "on failure, once".to_owned(),
        ContainerRestart::OnFailure { max } => format!("on failure, {max} times in a row"),
    }
}

/// Returns a probe as [`parse_probe`] reads it.
pub fn probe_words(probe: &HealthProbe) -> String {
    match probe {
        HealthProbe::Tcp { port } => format!("tcp:{port}"),
        HealthProbe::Http { port, path } => format!("http:{port}{path}"),
        HealthProbe::Exec { argv } => format!("exec:{}", argv.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_container_are_parsed_or_refused() {
        assert_eq!(parse_port("80"), Ok(PublishedPort { node: 80, container: 80 }));
        assert_eq!(parse_port("8080:80"), Ok(PublishedPort { node: 8080, container: 80 }));
        for text in ["", "0", "80:", ":80", "1:2:3", "65536", "a:80"] {
            assert!(parse_port(text).is_err(), "{text}");
        }
        let data = MountVolume { volume: "data".to_owned(), path: "/srv/a:b".to_owned() };
        assert_eq!(parse_mount("data:/srv/a:b"), Ok(data));
        for text in ["", "data", "data:", ":/srv", "data:srv"] {
            assert!(parse_mount(text).is_err(), "{text}");
        }
        for (text, millis) in [("1", 1000), ("0.5", 500), ("0.25", 250), ("2.125", 2125)] {
            assert_eq!(parse_cpu_millis(text), Ok(millis));
            assert_eq!(cpu_words(millis), text);
        }
        for text in ["", "0", "0.001", "-1", "1e3", "1.", ".5.", "0.0625", "1025", "99999999999"] {
            assert!(parse_cpu_millis(text).is_err(), "{text}");
        }
        assert_eq!(parse_user("1000:7"), Ok((1000, Some(7))));
        assert!(parse_user("root").is_err());
        assert_eq!(parse_restart("on-failure:3"), Ok(ContainerRestart::OnFailure { max: 3 }));
        assert!(parse_restart("sometimes").is_err());
        let argv = vec!["/bin/check".to_owned(), "-q".to_owned()];
        for (text, probe) in [
            ("http:80/up", HealthProbe::Http { port: 80, path: "/up".to_owned() }),
            ("tcp:80", HealthProbe::Tcp { port: 80 }),
            ("exec:/bin/check -q", HealthProbe::Exec { argv }),
        ] {
            assert_eq!(probe_words(&probe), text);
            assert_eq!(parse_probe(text), Ok(probe));
        }
        for text in ["", "tcp:0", "http:x/", "exec:", "udp:53"] {
            assert!(parse_probe(text).is_err(), "{text}");
        }
        assert_eq!(parse_mib("3M"), Ok(3));
        assert!(parse_mib("much").is_err());
    }
}
