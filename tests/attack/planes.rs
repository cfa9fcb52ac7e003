//! Each API answers its own routes on its own network, and nothing of the others: boot, agent,
//! admin socket, admin HTTPS, metrics.

use super::client::{Attacker, Identity};
use crate::{
    admin::https::{ADMIN, Office, PORT},
    world::{CENTRAL, http},
};
use meshd_lab::Namespace;
use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    time::Duration,
};

const METRICS_PORT: u16 = 9109;
const BOOT: [&str; 5] = [
    "/boot.ipxe",
    "/boot/script?mac=52:54:00:00:00:01&arch=x86_64",
    "/loader/ipxe.efi",
    "/overlay/00000000000000000000000000000000/overlay.cpio.gz",
    "/healthz",
];
const AGENT: [&str; 6] = [
    meshd_proto::ENROL_PATH,
    meshd_proto::PENDING_PATH,
    meshd_proto::RENEW_PATH,
    meshd_proto::LINK_PATH,
    "/v1/console/1",
    "/v1/volumes/0000000000000000000000000000000000000000000000000000000000000000",
];
const ADMIN_ROUTES: [&str; 6] =
    ["/v1/status", "/v1/nodes", "/v1/events", "/v1/api-tokens", "/v1/openapi.json", "/v1/audit"];
const METRICS: [&str; 1] = ["/metrics"];
/// Of no API: files of this machine.
const NOBODYS: [&str; 2] = ["/../state/ca/authority.json", "/blob/../../etc/passwd/kernel"];

fn reaches(from: &Namespace, to: &str) -> bool {
    let to: SocketAddr = to.parse().unwrap();
    from.inside(move || TcpStream::connect_timeout(&to, Duration::from_secs(3)).is_ok()).unwrap()
}

fn office() -> Office {
    let office =
        Office::open_with(&format!("[metrics]\naddress = \"{ADMIN}\"\nport = {METRICS_PORT}"));
    // Each side knows the way to the addresses of the other one.
    office.world.nodes.ip(&["address", "add", "10.77.0.66/24", "dev", "eth0"]).unwrap();
    office.world.nodes.ip(&["route", "add", "10.78.0.0/24", "via", CENTRAL]).unwrap();
    office.desk.ip(&["route", "add", "10.77.0.0/24", "via", ADMIN]).unwrap();
    office
}

#[test]
fn listener_answers_only_routes_of_its_own_api() {
    let office = office();
    let world = &office.world;
    let others = |own: &[&str]| {
        let all = BOOT.iter().chain(&AGENT).chain(&ADMIN_ROUTES).chain(&METRICS).chain(&NOBODYS);
        all.copied().filter(|route| !own.contains(route)).collect::<Vec<_>>()
    };
    let plain = |from: &Namespace, at: String, path: &str| {
        from.inside(|| http::request("GET", &format!("http://{at}{path}"), None))
            .unwrap()
            .unwrap()
            .status
    };

    assert_eq!(plain(&world.nodes, format!("{CENTRAL}:8080"), "/boot.ipxe"), 200);
    for path in others(&BOOT) {
        assert_eq!(plain(&world.nodes, format!("{CENTRAL}:8080"), path), 404, "boot: {path}");
    }
    assert_eq!(plain(&office.desk, format!("{ADMIN}:{METRICS_PORT}"), "/metrics"), 200);
    for path in others(&METRICS) {
        assert_eq!(
            plain(&office.desk, format!("{ADMIN}:{METRICS_PORT}"), path),
            404,
            "metrics: {path}"
        );
    }

    let attacker = Attacker::new(world);
    for path in others(&AGENT) {
        let (status, body) = attacker.run(attacker.get(&Identity::new(), path)).expect("an answer");
        assert_eq!(status, 404, "agent: {path}: {body}");
    }

    let token = fs::read_to_string(office.token("head", "admin")).unwrap();
    let token = format!("Authorization: Bearer {}", token.trim());
    let https = |path: &str| {
        let output = office.curl_output(&token, path);
        assert!(output.status.success(), "{path}: {output:?}");
        String::from_utf8_lossy(&output.stdout)
            .split(' ')
            .nth(1)
            .map(str::to_owned)
            .unwrap_or_default()
    };
    let socket = |path: &str| {
        let mut stream = UnixStream::connect(world.path("admin.sock")).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).split(' ').nth(1).map(str::to_owned).unwrap_or_default()
    };
    assert_eq!((https("/v1/status"), socket("/v1/status")), ("200".to_owned(), "200".to_owned()));
    // Whoever may see the state of the site may see its metrics there, too.
    for path in others(&ADMIN_ROUTES).into_iter().filter(|path| *path != "/metrics") {
        // A route of this API with another method is none of the boot or agent API.
        assert_eq!(
            (https(path), socket(path)),
            ("404".to_owned(), "404".to_owned()),
            "admin: {path}"
        );
    }
}

#[test]
fn listener_is_unreachable_from_foreign_networks() {
    let office = office();
    let nodes = &office.world.nodes;
    let desk = &office.desk;
    assert!(
        reaches(nodes, &format!("{CENTRAL}:8080")) && reaches(nodes, &format!("{CENTRAL}:8443"))
    );
    assert!(
        reaches(desk, &format!("{ADMIN}:{PORT}"))
            && reaches(desk, &format!("{ADMIN}:{METRICS_PORT}"))
    );
    // Linux takes packets for any of its addresses on any interface.
    for address in [CENTRAL, ADMIN] {
        for port in [PORT, METRICS_PORT] {
            assert!(
                !reaches(nodes, &format!("{address}:{port}")),
                "from the boot network: {address}:{port}"
            );
        }
        for port in [8080, 8443] {
            assert!(
                !reaches(desk, &format!("{address}:{port}")),
                "from the admin network: {address}:{port}"
            );
        }
    }
}
