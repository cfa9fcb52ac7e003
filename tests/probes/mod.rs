//! What must hold for any bytes from the network: one function for each parser, used by the fuzz
//! targets (tests/fuzz) and by `make test` (tests/it/boot/parsers.rs), so that both ask the same
//! question. A probe panics when a promise is broken.

use meshd_model::{
    boot::{Endpoint, Loader, Refusal, ScriptRequest},
    fleet::ObservedMachine,
};
use meshd_types::{DenyList, Hostlist, MAX_HOSTS};
use std::net::Ipv4Addr;

const ENDPOINT: Endpoint = Endpoint { address: Ipv4Addr::new(10, 77, 0, 1), http_port: 8080 };

/// Packets of several DHCP clients, relays and other servers to a site.
pub fn dhcp(bytes: &[u8]) {
    meshd_dhcp::check_invariants(bytes);
}

/// An IPv4 packet as the packet socket of DHCP brings it.
pub fn udp_packet(bytes: &[u8]) {
    if let Some(datagram) = meshd_serve::lan::parse(bytes) {
        assert!(datagram.payload.len() + 28 <= bytes.len(), "no more than came");
    }
}

/// Requests and transfers of several TFTP clients.
pub fn tftp(bytes: &[u8]) {
    meshd_tftp::check_invariants(bytes);
}

/// A request to the boot API: method, path, query and headers.
pub fn http(bytes: &[u8]) {
    meshd_serve::http::check_invariants(bytes);
}

/// A file, packet or response that the first program of a node reads.
pub fn stage1(bytes: &[u8]) {
    meshd_stage1::check_invariants(bytes);
}

/// A packet of Linux's netconsole.
pub fn netconsole(bytes: &[u8]) {
    let text = meshd_serve::netconsole::text_of(bytes);
    assert!(text.len() <= 8192, "bounded");
    assert!(text.lines().count() <= bytes.len(), "no line without a cause");
}

/// Names of nodes in a request to the admin API.
pub fn hostlist(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(list) = text.parse::<Hostlist>() {
        assert!((1..=MAX_HOSTS).contains(&list.patterns().len()), "within the bound");
        assert_eq!(list.to_string().parse(), Ok(list));
    }
}

/// The query of a script request: a machine, or an error that iPXE can print without executing it.
pub fn script_request(bytes: &[u8]) {
    let query = String::from_utf8_lossy(bytes);
    match ScriptRequest::parse(&query) {
        Ok(request) => {
            assert!(
                request.serial.len() <= 512
                    && request.manufacturer.len() <= 512
                    && request.product.len() <= 512
            );
            if let Some(seen) =
                ObservedMachine::from_hardware(&request.hardware(), request.mac, &DenyList::new())
            {
                assert_eq!(seen.node_id().to_string().len(), 8);
            }
        }
        Err(error) => {
            let plain = refusal(String::new());
            let script = refusal(error.to_string());
            assert_eq!(script.lines().count(), plain.lines().count(), "{error}");
            assert!(!script.contains(['$', '\r', '"', '\'', '\\']), "{script}");
        }
    }
}

fn refusal(detail: String) -> String {
    Loader::Ipxe.refusal_script(&Refusal::BadRequest { detail }, ENDPOINT, None, "c0ffee00")
}
