//! meshd is killed with -9 under load, at random instants and at chosen places, again and again.
//! What it acknowledged is written down outside of it, and has to be there each time it has started
//! again by itself.
//!
//! `MESHD_CRASH_KILLS` says how often (`make test-crash`: 500), `MESHD_CRASH_SEED` repeats a run's
//! choices.

mod client;
mod load;
mod record;

use crate::world::{World, eventually, node::PxeNode};
use client::Admin;
use load::Load;
use record::Record;
use serde_json::json;
use std::{
    env, fs,
    os::unix::process::ExitStatusExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::Child,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Kills in `make test`.
const FEW: u64 = 20;
/// How long a meshd lives at most until it is killed at a random instant.
const LIFE: Duration = Duration::from_millis(700);
/// How many times as many kills a machine gets that is too busy for the load.
const SLOW: u64 = 5;
/// How long it may take to come by a chosen place; then it is killed where it is.
const COMES_BY: Duration = Duration::from_secs(3);
/// So short a journal that it is written anew several times in each life, in bytes.
const RENEW_AFTER: u64 = 48 << 10;

/// Where it ends itself.
const PLACES: [&str; 13] = [
    "store-write",
    "store-half",
    "store-written",
    "store-flushed",
    "store-acknowledged",
    "store-whole",
    "store-renamed",
    "store-renewed",
    "enrol-issued",
    "enrol-committed",
    "overlay-sent",
    "dhcp-committed",
    "order-committed",
];

/// SplitMix64: choices that a seed repeats.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn acknowledged_changes_survive_kill_9_under_load() {
    let kills = number("MESHD_CRASH_KILLS").unwrap_or(FEW);
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let seed = number("MESHD_CRASH_SEED").unwrap_or_else(now);
    eprintln!("{kills} kills, MESHD_CRASH_SEED={seed}");
    let world = World::prepared("approve");
    let site = fs::read_to_string(world.path("site.toml")).unwrap();
    fs::write(
        world.path("site.toml"),
        site.replace("10.77.0.100-10.77.0.110", "10.77.0.10-10.77.0.250"),
    )
    .unwrap();
    let record = Record::default();
    let stop = AtomicBool::new(false);
    let mut dice = Dice::new(seed);
    thread::scope(|scope| {
        // However this ends, also in a panic, the load ends with it.
        let _over = Over(&stop);
        let load = Load { world: &world, record: &record, stop: &stop };
        let load = load.start(scope, seed);
        let mut at_places = 0;
        let first = Life::whole(&world).until_it_answers(&world).expect("it starts");
        eventually("the load is under way", || record.is_under_way());
        first.end(&mut dice);
        // A busy machine gets less done in each life.
        let mut kill = 0;
        while kill < kills || kill < kills * SLOW && !record.is_busy(kills) {
            kill += 1;
            assert!(
                load.iter().all(|one| !one.is_finished()),
                "a part of the load has failed; above is how"
            );
            let life = Life::begin(&world, &mut dice);
            if life.place.is_none() && dice.below(8) == 0 {
                // Also while it starts.
                life.end(&mut dice);
                continue;
            }
            let Some(mut life) = life.until_it_answers(&world) else { continue };
            record.check(&Admin::of(&world));
            at_places += u64::from(life.lives_on());
            life.end(&mut dice);
            if kill.is_multiple_of(50) {
                eprintln!("{kill} kills, {at_places} while it answered; {}", record.words());
            }
        }
        let last = Life::whole(&world).until_it_answers(&world).expect("it starts again by itself");
        record.check(&Admin::of(&world));
        stop.store(true, Ordering::SeqCst);
        last.end(&mut dice);
    });
    eprintln!("{}", record.words());
    assert!(record.is_busy(kills), "too little was going on");
}

#[test]
fn store_that_lost_acknowledged_changes_is_detected() {
    let mut world = World::new("approve");
    PxeNode::new(&world, 1).power_on().unwrap();
    let id = world.node()["id"].as_str().unwrap().parse().unwrap();
    let admin = Admin::of(&world);
    let record = Record::default();
    admin.order(&format!("/v1/nodes/{id}/approve"), &json!({})).unwrap();
    record.approved(id);
    let set = |value| {
        record.will_set(id, value);
        admin
            .order(&format!("/v1/nodes/{id}/vars"), &json!({ "set": { "mpi_slots": value } }))
            .unwrap();
        record.set(id, value);
    };
    set(1);
    world.kill();
    let store = world.path("state/store");
    let before = world.path("before");
    fs::create_dir(&before).unwrap();
    let copy = |from: &Path, to: &Path| {
        for entry in fs::read_dir(from).unwrap().flatten() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    };
    copy(&store, &before);
    world.start();
    record.check(&admin);
    set(2);
    record.check(&admin);
    world.kill();
    copy(&before, &store);
    world.start();
    let found = catch_unwind(AssertUnwindSafe(|| record.check(&admin)));
    let message = *found.expect_err("something is missing").downcast::<String>().unwrap();
    assert!(message.contains("n = Some(1)") && message.contains("events"), "{message}");
}

/// Where it ends itself while it makes its store, authority and keys.
const FIRST: [&str; 4] = ["store-whole", "store-renamed", "file-written", "file-renamed"];

#[test]
fn first_start_killed_at_any_step_is_completed_by_the_next_one() {
    let mut world = World::prepared("auto");
    for place in FIRST {
        for time in 1..9 {
            for made in ["store", "ca", "secrets.key"] {
                let path = world.path("state").join(made);
                let _ =
                    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            }
            let child = world.spawn(&[("MESHD_FAIL", format!("{place}:{time}"))]);
            let Some(life) = (Life { child, place: Some(place) }).until_it_answers(&world) else {
                // What was in its place before the end is kept.
                let authority = fs::read(world.path("state/ca/ca.key")).ok();
                world.start();
                let now = fs::read(world.path("state/ca/ca.key")).ok();
                assert!(authority.is_none() || authority == now, "killed at {place}, time {time}");
                world.kill();
                continue;
            };
            // It does not come by that often.
            drop(life);
            break;
        }
    }
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// One run of meshd.
struct Life {
    child: Child,
    place: Option<&'static str>,
}

impl Life {
    fn begin(world: &World, dice: &mut Dice) -> Self {
        let at = usize::try_from(dice.below(2 * PLACES.len() as u64)).unwrap();
        let place = PLACES.get(at).copied();
        let mut environment = vec![("MESHD_RENEW_AFTER", RENEW_AFTER.to_string())];
        environment
            .extend(place.map(|place| ("MESHD_FAIL", format!("{place}:{}", 1 + dice.below(6)))));
        Life { child: world.spawn(&environment), place }
    }

    fn whole(world: &World) -> Self {
        Life { child: world.spawn(&[]), place: None }
    }

    fn is_over(&mut self) -> bool {
        match self.child.try_wait().unwrap() {
            None => false,
            Some(status) => {
                assert_eq!(
                    status.signal(),
                    Some(9),
                    "meshd ended by itself at {:?}: {status}",
                    self.place
                );
                true
            }
        }
    }

    fn lives_on(&mut self) -> bool {
        !self.is_over()
    }

    /// `None`: it came by its place before.
    fn until_it_answers(mut self, world: &World) -> Option<Self> {
        let admin = Admin::of(world);
        let answers = eventually("meshd starts again by itself", || {
            if self.is_over() {
                return Ok(false);
            }
            match admin.get("/v1/status") {
                Ok(_) => Ok(true),
                Err(error) => Err(format!("{error}\n{}", world.log_text())),
            }
        });
        answers.then_some(self)
    }

    /// Ends it: at its place if it comes by, else at a random instant.
    fn end(mut self, dice: &mut Dice) {
        let most = if self.place.is_some() { COMES_BY } else { LIFE };
        let span = most.mul_f64(dice.below(1000) as f64 / 1000.0);
        let end = Instant::now() + if self.place.is_some() { most } else { span };
        while Instant::now() < end && !self.is_over() {
            thread::park_timeout(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
