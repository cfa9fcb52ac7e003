//! More machines than can be served at once: they wait in line, in iPXE, and what is made for them
//! is made once.

use crate::{
    boot::contract::ask::{self, Client, Firmware},
    world::{World, http, node::Script},
};
use futures_util::{FutureExt as _, future::join_all};
use meshd::daemon;
use meshd_model::{
    boot::Endpoint,
    fleet::{Fingerprint, Node},
};
use meshd_types::{Basis, MacAddr, Timestamp};
use std::{fs, net::Ipv4Addr};

const URL: &str = "http://10.77.0.1:8080";

fn mac(number: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 2, number])
}

fn node(number: u8) -> Node {
    let mac = mac(number);
    Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, Timestamp::from_millis(0))
}

#[test]
fn concurrent_requests_render_once_and_block_no_cached_node() {
    let world = World::prepared("auto");
    let central = daemon::build(meshd_config::load(&world.path("site.toml")).unwrap()).unwrap();
    let endpoint = Endpoint { address: Ipv4Addr::new(10, 77, 0, 1), http_port: 8080 };
    // One thread for requests and one for renders: a render done on the first would be seen below,
    // and the second is ours to hold.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let made = central.generations.render(&node(0), endpoint).await.unwrap();
        assert_eq!(central.generations.render_count(), 1);
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let holder = tokio::task::spawn_blocking(move || held.recv());
        let new = node(1);
        let mut storm =
            Box::pin(join_all((0..1000).map(|_| central.generations.render(&new, endpoint))));
        assert!((&mut storm).now_or_never().is_none(), "it is to be made, elsewhere");
        let cached = central
            .generations
            .render(&node(0), endpoint)
            .now_or_never()
            .expect("at once")
            .unwrap();
        assert_eq!(cached.generation, made.generation);
        let_go.send(()).unwrap();
        holder.await.unwrap().unwrap();
        let all = storm.await;
        assert_eq!(central.generations.render_count(), 2);
        let first = all[0].as_ref().unwrap().generation;
        assert!(
            first != made.generation
                && all.iter().all(|one| one.as_ref().is_ok_and(|one| one.generation == first))
        );
    });
}

struct Rack {
    world: World,
    addresses: Vec<Ipv4Addr>,
}

impl Rack {
    /// Machines that stand before their script, where so many may load at once.
    fn new(machines: u8, max_loading: usize) -> Self {
        let mut world = World::prepared("auto");
        let text = fs::read_to_string(world.path("site.toml")).unwrap();
        let text = text.replace("[boot]\n", &format!("[boot]\nmax_loading = {max_loading}\n"));
        fs::write(world.path("site.toml"), text).unwrap();
        world.start();
        let clients: Vec<_> = (0..machines)
            .map(|number| Firmware { arch: 0, client: Client::Ipxe, mac: mac(number) })
            .collect();
        let answers = ask::walk_each(&world, &clients, false, |_| true);
        let addresses: Vec<_> =
            answers.iter().map(|(_, answers)| answers.last().expect("a lease").address).collect();
        for (number, address) in (0..machines).zip(&addresses) {
            world
                .host(mac(number))
                .ip(&["address", "add", &format!("{address}/24"), "dev", "eth0"])
                .unwrap();
        }
        Rack { world, addresses }
    }

    fn get(&self, number: u8, url: &str) -> http::Answer {
        let from = Some(self.addresses[usize::from(number)]);
        self.world.host(mac(number)).inside(|| http::request("GET", url, from)).unwrap().unwrap()
    }

    fn ask(&self, number: u8) -> Script {
        let answer =
            self.get(number, &format!("{URL}/boot/script?mac={}&arch=x86_64", mac(number)));
        assert_eq!(answer.status, 200, "never an error that iPXE would give up at");
        Script(answer.text())
    }
}

/// The place and the seconds that a script tells its machine to wait; `None` for one that boots it.
fn queue_place(script: &Script) -> Option<(usize, u32)> {
    let number = |after: &str| -> Option<u32> {
        let (_, rest) = script.0.split_once(after)?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    if script.overlay().is_some() {
        return None;
    }
    let place = number("has position ")
        .unwrap_or_else(|| panic!("neither a boot nor a place: {}", script.0));
    let seconds = number("\nsleep ").expect("it waits");
    assert!(
        script.0.contains("ifconf --configurator dhcp") && script.0.contains("/boot.ipxe"),
        "and asks again"
    );
    Some((usize::try_from(place).unwrap(), seconds))
}

#[test]
fn boot_queue_is_first_in_first_out() {
    let rack = Rack::new(5, 2);
    let scripts: Vec<Script> = (0..5).map(|number| rack.ask(number)).collect();
    let places: Vec<_> =
        scripts.iter().map(|script| queue_place(script).map_or(0, |(place, _)| place)).collect();
    assert_eq!(places, [0, 0, 1, 2, 3], "first come, first served");
    assert!(scripts.iter().filter_map(queue_place).all(|(_, seconds)| (1..=30).contains(&seconds)));
    assert_eq!(queue_place(&rack.ask(0)), None, "a boot in progress does not wait");
    for number in 2..5u8 {
        // The one that came longest ago loads everything; the overlay is the last of it.
        for url in rack.ask(number - 2).urls() {
            assert_eq!(rack.get(number - 2, &url).status, 200, "{url}");
        }
        crate::world::eventually("the next one's turn comes", || {
            let later: Vec<_> =
                (number + 1..5).map(|later| queue_place(&rack.ask(later))).collect();
            assert!(later.iter().all(Option::is_some), "nobody overtakes: {later:?}");
            queue_place(&rack.ask(number)).map_or(Ok(()), |wait| Err(format!("{wait:?}")))
        });
    }
}

#[test]
fn repeated_script_differs_only_in_capability_until_profile_change() {
    let rack = Rack::new(1, 2);
    let first = rack.ask(0);
    let node = rack.world.node();
    let id = node["id"].as_str().unwrap();
    let mut last = first.overlay().expect("a boot");
    for _ in 0..5 {
        let again = rack.ask(0);
        let overlay = again.overlay().expect("a boot");
        assert_ne!(overlay, last, "each script has its own capability");
        assert_eq!(again.0.replace(&overlay, ""), first.0.replace(&first.overlay().unwrap(), ""));
        assert_eq!(rack.get(0, &last).status, 410, "the one before is void");
        last = overlay;
    }
    crate::world::eventually("they are counted", || {
        let boot = &rack.world.node()["boot"];
        let stages = boot["stages"].as_array().cloned().unwrap_or_default();
        let script = stages.into_iter().find(|mark| mark["stage"] == "script").unwrap_or_default();
        if script["count"] == 6 { Ok(()) } else { Err(format!("{boot}")) }
    });
    assert_eq!(rack.get(0, &last).status, 200);
    // The client has the last byte a moment before the server knows that it was written.
    crate::world::eventually("the overlay is spent", || match rack.get(0, &last).status {
        410 => Ok(()),
        status => Err(status.to_string()),
    });

    // The next boot begins with DHCP.
    let client = Firmware { arch: 0, client: Client::Ipxe, mac: mac(0) };
    ask::walk_each(&rack.world, &[client], false, |_| true);
    assert!(rack.ask(0).0.contains("# profile discovery\n"));
    let assigned = rack.world.meshd(&["node", "assign-profile", id, "compute"]);
    assert!(assigned.status.success(), "{assigned:?}");
    assert!(rack.ask(0).0.contains("# profile compute\n"), "the next script is what was assigned");
    let other = rack.get(0, &format!("{URL}/boot/script?mac={}&arch=arm64", mac(0)));
    assert!(other.text().contains("# refusal arch_mismatch"), "{}", other.text());
    assert!(rack.ask(0).overlay().is_some(), "and it boots on");
}
