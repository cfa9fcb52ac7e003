//! Somebody on the boot network who knows everything about a node but is not it.

use crate::{
    overlays::{PEEK_END, peeked},
    racks::{OrEnd, SOON, command_lines, count, events, has_secret, until_written},
};
use meshd_lab::{Neighbour, Rack};
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

/// Its address: on the segment, outside the range of leases.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 66);
const TIMEOUT: Duration = Duration::from_secs(60);
/// More than any script, in bytes.
const ANSWER_LIMIT: u64 = 64 * 1024;

/// Asks for the boot of the node at this place with its correct UUID, serial number and MAC
/// address, and proves that it gets nothing and that an alarm is recorded.
pub fn asks_in_vain(rack: &Rack, stranger: &Neighbour, place: u8, when: &str) {
    let alarms = count(rack, place, "boot_impersonated");
    let identity = rack.identity(place);
    let mac = identity.mac;
    let uuid = identity.uuid;
    let serial = identity.serial;
    let hex =
        |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join("-");
    let query = format!(
        "/boot/script?mac={mac}&uuid={uuid}&arch=x86_64&manufacturer_hex={}&product_hex={}&serial_hex={}",
        hex("meshd"),
        hex("Rack in a Box"),
        hex(&serial)
    );
    let script = get(rack, stranger, &query);
    assert!(
        script.contains("#!ipxe") && script.contains("# refusal "),
        "{when}: the script says why\n{script}"
    );
    assert!(!script.contains("overlay") && !has_secret(&script), "{when}: no capability\n{script}");
    let now = count(rack, place, "boot_impersonated");
    assert_eq!(now, alarms + 1, "{when}: an alarm each time");
}

/// Tries to fetch an overlay with a capability that it made up.
pub fn guesses_in_vain(rack: &Rack, stranger: &Neighbour) {
    for path in ["overlay.cpio.gz", "apkovl.tar.gz"] {
        let answer = get(rack, stranger, &format!("/overlay/{}/{path}", "0a".repeat(16)));
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    }
}

/// What a user of the node can see holds neither capability nor token, and neither do meshd's log
/// and events.
pub fn hides_its_secrets(rack: &Rack, place: u8) {
    let lines = command_lines(rack, place);
    assert!(!lines.is_empty() && lines.iter().all(|line| !has_secret(line)), "{lines:?}");
    let serial = until_written(rack, place, PEEK_END, SOON);
    assert!(!has_secret(&peeked(&serial, "PEEK-CMDLINE")), "/proc/cmdline shows a secret");
    assert_eq!(peeked(&serial, "PEEK-MODE"), "600");
    assert_eq!(peeked(&serial, "PEEK-TOKEN"), "seen", "the overlay brought a token");
    assert!(
        !serial.lines().any(|line| line.trim_start().starts_with("PEEK-LEFT /")),
        "the token is still on the node"
    );
    assert!(!rack.central_log().contains("/overlay/"), "the log names routes, not paths");
    for event in events(rack) {
        assert!(!event["detail"].as_str().unwrap_or_default().contains("/overlay/"), "{event}");
    }
}

fn get(rack: &Rack, stranger: &Neighbour, path: &str) -> String {
    let address = rack.site().segments[0].address.expect("the lab's site names it");
    let server = SocketAddr::from((address, rack.site().http.port));
    let request = format!("GET {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
    let answered = stranger.inside(|| {
        let mut stream = TcpStream::connect_timeout(&server, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.take(ANSWER_LIMIT).read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    });
    answered.or_end().expect("the boot API answers")
}
