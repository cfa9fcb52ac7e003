//! The questions of the fuzz targets, asked of random bytes and of everything that fuzzing and real
//! clients ever brought up.

#[path = "../../probes/mod.rs"]
mod probes;

use proptest::prelude::*;
use std::{fs, path::Path};

type Probe = fn(&[u8]);

/// Every parser of network bytes, by the name of its fuzz target and of its folder in the corpus.
const PROBES: [(&str, Probe); 8] = [
    ("dhcp", probes::dhcp),
    ("udp_packet", probes::udp_packet),
    ("tftp", probes::tftp),
    ("http", probes::http),
    ("script_request", probes::script_request),
    ("stage1", probes::stage1),
    ("hostlist", probes::hostlist),
    ("netconsole", probes::netconsole),
];

#[test]
fn fuzz_corpus_passes_every_probe() {
    for (name, probe) in PROBES {
        let folder = Path::new("tests/fuzz/corpus").join(name);
        let mut seeds = 0;
        for entry in
            fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        {
            let path = entry.expect("a readable folder").path();
            let bytes = fs::read(&path).expect("a readable seed");
            // The name of the seed stands above the panic.
            eprintln!("{}", path.display());
            probe(&bytes);
            seeds += 1;
        }
        assert!(seeds > 0, "{} has no seeds", folder.display());
    }
}

#[test]
fn probe_is_listed_as_fuzz_target() {
    let manifest =
        fs::read_to_string("tests/fuzz/Cargo.toml").expect("the manifest of the fuzz targets");
    for (name, _) in PROBES {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is not fuzzed");
    }
}

proptest! {
    #[test]
    fn random_bytes_pass_every_probe(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        for (_, probe) in PROBES {
            probe(&bytes);
        }
    }

    #[test]
    fn random_http_request_passes_its_probe(
        path in "(/|boot|script|\\.ipxe|blob|overlay|loader|kernel|[0-9a-f]{32}|%2e|\\.\\.|\\?|mac=|&|[a-z]{0,3}){0,9}",
        header in "(range: bytes=|if-none-match: |content-length: |[0-9]{1,4}|-|,|\\*|\n){0,6}",
    ) {
        probes::http(format!("GET /{path}\n{header}").as_bytes());
    }

    #[test]
    fn random_script_query_passes_its_probe(query in "(mac=[0-9a-f:%]{0,20}|uuid=[0-9a-f-]{0,40}|arch=[a-z0-9_]{0,8}|serial_hex=[0-9a-f-]{0,9}|[a-z]{1,6}=\\PC{0,9}|&){0,12}") {
        probes::script_request(query.as_bytes());
    }
}
