//! The boot API to real clients: a cache in front of it, curl that goes on where it broke off, and
//! many machines at once.

use crate::{
    boot::contract::ask::{self, Client, Firmware},
    world::{
        World,
        dhcp::As,
        eventually,
        http::Answer,
        node::{PxeNode, Script},
    },
};
use meshd_types::MacAddr;
use std::{
    collections::BTreeSet,
    fs,
    net::{Ipv4Addr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
};

/// nginx as a site would put it in front, on the machines' side of the wire. It is told nothing of
/// what may be kept: the answers do.
struct Cache {
    process: Child,
}

const CACHE: &str = "127.0.0.1:8081";

impl Cache {
    fn start(machine: &PxeNode<'_>) -> Self {
        let root = machine.world.path("nginx");
        let host = machine.host();
        fs::create_dir_all(&root).unwrap();
        let config = root.join("nginx.conf");
        let text = format!(
            "daemon off; master_process off; pid {root}/pid; error_log {root}/log; events {{ }}\n\
             http {{ access_log off; proxy_cache_path {root}/kept keys_zone=kept:1m; proxy_temp_path {root}/b;\n\
             client_body_temp_path {root}/a; fastcgi_temp_path {root}/c; uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;\n\
             server {{ listen {CACHE}; location / {{ proxy_pass http://10.77.0.1:8080; proxy_cache kept;\n\
             add_header X-Cache $upstream_cache_status always; }} }} }}\n",
            root = root.display()
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(&root).arg("-c").arg(&config).args(["-g", "user root;"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(root.join("talk")).unwrap());
        let process = host.spawn(&mut command).expect("nginx is installed");
        let cache = Cache { process };
        eventually("nginx answers", || {
            let log = || fs::read_to_string(root.join("talk")).unwrap_or_default();
            host.inside(|| TcpStream::connect(CACHE))
                .unwrap()
                .map_err(|error| format!("{error}: {}", log()))
        });
        cache
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The same URL by way of the cache, from the machine's own address, as a cache on another
/// machine's address could not.
fn cached(machine: &PxeNode<'_>, url: &str) -> (Answer, String) {
    let url = url.replace("10.77.0.1:8080", CACHE);
    let answer =
        machine.host().inside(|| crate::world::http::request("GET", &url, None)).unwrap().unwrap();
    let how = answer.header("x-cache").unwrap_or("none").to_owned();
    (answer, how)
}

#[test]
fn http_cache_stores_blobs_and_no_script_overlay_or_error() {
    let mut world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    machine.power_on().unwrap();
    let cache = Cache::start(&machine);

    let mut capabilities = BTreeSet::new();
    for _ in 0..2 {
        machine.dhcp(As::Ipxe);
        let (script, how) = cached(&machine, &machine.script_url());
        assert!(
            how != "hit" && script.header("cache-control") == Some("no-store"),
            "{how}: {}",
            script.head
        );
        let overlay = Script(script.text()).overlay().expect("a capability");
        assert!(capabilities.insert(overlay.clone()), "each script is made anew");
        let (given, how) = cached(&machine, &overlay);
        assert_eq!((given.status, how.as_str()), (200, "miss"));
        // The client has the last byte a moment before the server knows that it was written.
        eventually("the overlay is spent", || {
            let (again, how) = cached(&machine, &overlay);
            assert!(
                again.status != 200 && how == "miss",
                "a cache has no overlay to give: {} {how}",
                again.status
            );
            if again.status == 410 { Ok(()) } else { Err(again.status.to_string()) }
        });
    }
    for (path, status) in [
        ("boot.ipxe", 200),
        ("loader/snponly.efi", 200),
        ("healthz", 200),
        ("blob/junk/kernel", 404),
        ("x/", 404),
    ] {
        for _ in 0..2 {
            let (answer, how) = cached(&machine, &format!("http://10.77.0.1:8080/{path}"));
            assert_eq!((answer.status, how.as_str()), (status, "miss"), "{path}");
        }
    }

    // The boot has its overlay: the next script needs a new exchange.
    machine.dhcp(As::Ipxe);
    let script = Script(machine.get(&machine.script_url()).unwrap().text());
    let blobs: Vec<String> =
        script.urls().into_iter().filter(|url| url.contains("/blob/")).collect();
    assert_eq!(blobs.len(), 3, "{blobs:?}");
    let direct: Vec<Vec<u8>> = blobs.iter().map(|url| machine.get(url).unwrap().body).collect();
    for expected in ["miss", "hit"] {
        for (url, direct) in blobs.iter().zip(&direct) {
            let (answer, how) = cached(&machine, url);
            assert_eq!((answer.status, how.as_str()), (200, expected));
            assert!(answer.body == *direct, "the cache has the very bytes");
        }
    }
    let kept: Vec<String> = blobs.iter().map(|url| url.replace("10.77.0.1:8080", CACHE)).collect();
    let host = machine.host();
    drop(machine);
    world.kill();
    for (url, direct) in kept.iter().zip(&direct) {
        let answer =
            host.inside(|| crate::world::http::request("GET", url, None)).unwrap().unwrap();
        assert!(
            answer.status == 200 && answer.body == *direct,
            "without the central node, for a blob never changes"
        );
    }
    drop(cache);
}

fn curl(machine: &PxeNode<'_>, args: &[&str]) -> Output {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--location", "--max-time", "60"]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output =
        machine.host().spawn(&mut command).expect("curl is installed").wait_with_output().unwrap();
    assert!(output.status.success(), "curl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn curl_resumes_partial_transfers_and_is_never_redirected() {
    let world = World::new("auto");
    let machine = PxeNode::new(&world, 1);
    let script = machine.power_on().unwrap();
    let url = script.urls().into_iter().find(|url| url.ends_with("/kernel")).expect("a kernel");
    let whole = machine.get(&url).unwrap().body;
    let file: PathBuf = world.path("kernel");
    let path = file.to_str().unwrap();
    for begun in [1, 65_536, whole.len() - 1] {
        fs::write(&file, &whole[..begun]).unwrap();
        curl(&machine, &["--continue-at", "-", "--output", path, &url]);
        assert!(fs::read(&file).unwrap() == whole, "from byte {begun}");
    }
    let head = String::from_utf8(curl(&machine, &["--head", &url]).stdout).unwrap().to_lowercase();
    assert!(head.contains(&format!("content-length: {}\r\n", whole.len())), "{head}");
    assert!(head.contains("\r\ndate: ") && head.contains("accept-ranges: bytes"), "{head}");
    assert!(
        !head.contains("\r\nvary: ") && !head.contains("\r\nage: "),
        "one answer for everyone, made here: {head}"
    );
    let old = curl(&machine, &["--http1.0", &url]).stdout;
    assert!(old == whole, "HTTP/1.0");
    for path in [
        "boot.ipxe/",
        "/boot.ipxe",
        "blob",
        "blob/",
        "loader/snponly.efi/",
        "overlay/",
        "healthz/",
        "%2e%2e/",
    ] {
        let url = format!("http://10.77.0.1:8080/{path}");
        let seen = curl(
            &machine,
            &["--path-as-is", "--output", "/dev/null", "--write-out", "%{num_redirects}", &url],
        )
        .stdout;
        assert_eq!(seen, b"0", "{path} leads elsewhere");
    }
}

/// What one machine fetches between its script and its start; whole or not at all.
fn load(machine: (MacAddr, Ipv4Addr)) -> Result<(), String> {
    let (mac, address) = machine;
    let get = |url: &str| {
        let answer = crate::world::http::request("GET", url, Some(address))
            .map_err(|error| format!("{url}: {error}"))?;
        if answer.status == 200 { Ok(answer) } else { Err(format!("{url}: {}", answer.head)) }
    };
    let uuid = format!("4c010203-0405-0607-0809-{}", mac.to_string().replace(':', ""));
    let script =
        get(&format!("http://10.77.0.1:8080/boot/script?mac={mac}&uuid={uuid}&arch=x86_64"))?;
    let script = Script(script.text());
    if script.urls().len() != 4 {
        return Err(script.0);
    }
    script.urls().iter().try_for_each(|url| get(url).map(drop))
}

#[test]
fn concurrent_boots_succeed_beside_1000_idle_connections() {
    let mut world = World::prepared("auto");
    let text = fs::read_to_string(world.path("site.toml")).unwrap();
    fs::write(
        world.path("site.toml"),
        text.replace("10.77.0.100-10.77.0.110", "10.77.0.100-10.77.0.200"),
    )
    .unwrap();
    world.start();
    let ipxe = |number| Firmware {
        arch: 0,
        client: Client::Ipxe,
        mac: MacAddr([0x52, 0x54, 0, 0, 1, number]),
    };
    let all: Vec<Firmware> = (0..30).map(ipxe).collect();
    let answers = ask::walk_each(&world, &all, false, |_| true);
    let machines: Vec<(MacAddr, Ipv4Addr)> = answers
        .iter()
        .map(|(ipxe, answers)| (ipxe.mac, answers.last().expect("a lease").address))
        .collect();
    for (mac, address) in &machines {
        world.host(*mac).ip(&["address", "add", &format!("{address}/24"), "dev", "eth0"]).unwrap();
    }
    world.nodes.ip(&["address", "add", "10.77.0.66/24", "dev", "eth0"]).unwrap();
    let hoard: Vec<TcpStream> = world
        .nodes
        .inside(|| {
            (0..1000)
                .map(|_| TcpStream::connect(("10.77.0.1", 8080)).expect("it is accepted"))
                .collect()
        })
        .unwrap();
    let faults: Vec<String> = thread::scope(|scope| {
        let boot = |machine: &(MacAddr, Ipv4Addr)| {
            world.host(machine.0).inside(|| load(*machine)).unwrap()
        };
        let boots: Vec<_> =
            machines.iter().map(|machine| scope.spawn(move || boot(machine))).collect();
        boots.into_iter().filter_map(|boot| boot.join().expect("no panic").err()).collect()
    });
    assert!(faults.is_empty(), "{faults:?}");
    drop(hoard);
}
