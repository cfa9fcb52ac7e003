//! Reads from servers in memory, some of which are lost or lie.

use super::{
    super::{failover::PATIENCE, hash_tree::sample},
    *,
};
use meshd_types::Digest;
use proptest::prelude::*;

const BLOCKS: u64 = 300;

/// Servers in memory. Waiting takes no time, but the clock goes on.
pub struct Rack {
    files: Vec<Vec<u8>>,
    /// Time that each server takes for an answer.
    takes: Vec<Duration>,
    /// Most bytes that arrive before a request has taken too long.
    longest: u64,
    /// Time at which each server answers again.
    down_until: Vec<Duration>,
    now: Duration,
    requests: Vec<(usize, u64, u64)>,
    failed: Vec<String>,
    recovered: Vec<usize>,
}

impl Rack {
    fn of(files: Vec<Vec<u8>>) -> Self {
        let down_until = vec![Duration::ZERO; files.len()];
        let requests = Vec::new();
        let failed = Vec::new();
        let recovered = Vec::new();
        let takes = vec![Duration::ZERO; files.len()];
        Rack {
            files,
            takes,
            longest: u64::MAX,
            down_until,
            now: Duration::ZERO,
            requests,
            failed,
            recovered,
        }
    }
}

impl Servers for Rack {
    type Error = &'static str;

    fn fetch(&mut self, server: usize, from: u64, length: u64) -> Result<Vec<u8>, Self::Error> {
        self.requests.push((server, from, length));
        self.now += self.takes[server];
        if length > self.longest {
            return Err("too slow");
        }
        if self.now < self.down_until[server] {
            return Err("down");
        }
        Ok(self.files[server][index(from)..][..index(length)].to_vec())
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn pause(&mut self, delay: Duration) {
        self.now += delay;
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn failed(&mut self, server: usize, cause: &str, _delay: Duration) {
        self.failed.push(format!("{server}: {cause}"));
    }

    fn recovered(&mut self, server: usize) {
        self.recovered.push(server);
    }
}

fn image(file: &[u8], verity: crate::config::VerityTree, servers: usize) -> RootImage {
    let url = |number| format!("http://10.77.0.{number}/blob/a/root").parse().expect("a URL");
    RootImage {
        urls: (1..=servers).map(url).collect(),
        digest: Digest::of(file),
        size: file.len() as u64,
        verity,
    }
}

pub fn open(files: Vec<Vec<u8>>) -> Result<RootReader<Rack>, ReadError> {
    let (file, verity) = sample::root(BLOCKS);
    RootReader::open(&image(&file, verity, files.len()), Rack::of(files))
}

pub fn good() -> Vec<u8> {
    sample::root(BLOCKS).0
}

pub fn flipped(at: u64) -> Vec<u8> {
    let mut file = good();
    file[index(at)] ^= 1;
    file
}

const ALL: u32 = 300 * 4096;

#[test]
fn whole_root_with_its_tree_is_read_by_few_requests() {
    let file = good();
    let mut reader = open(vec![file.clone()]).expect("opened");
    let size = u32::try_from(file.len()).expect("small");
    assert_eq!(reader.read(0, size), Ok(file));
    // The tree, then 10 chunks as 1, 2, 4 and the rest.
    assert_eq!(reader.servers.requests.len(), 1 + 4, "{:?}", reader.servers.requests);
    let before = reader.servers.requests.len();
    assert!(reader.read(5, 100).is_ok());
    assert_eq!(reader.servers.requests.len(), before, "from memory");
}

#[test]
fn lost_server_is_replaced_within_a_read() {
    let mut reader = open(vec![good(), good()]).expect("opened");
    reader.servers.down_until[0] = Duration::MAX;
    assert_eq!(reader.read(0, ALL).expect("read"), good()[..ALL as usize]);
    assert_eq!(reader.servers.failed, ["0: down"], "it is asked once");
    assert_eq!(reader.servers.recovered, [1]);
    assert_eq!(reader.servers.now, Duration::ZERO, "without a delay");
}

#[test]
fn slow_server_is_left_after_its_answer() {
    let mut reader = open(vec![good(), good()]).expect("opened");
    reader.servers.takes[0] = Duration::from_secs(20);
    assert_eq!(reader.read(0, ALL).expect("read"), good()[..ALL as usize]);
    assert_eq!(reader.servers.now, Duration::from_secs(20), "one answer was waited for");
    assert!(reader.servers.failed.is_empty(), "{:?}", reader.servers.failed);
}

#[test]
fn root_is_read_over_a_network_that_carries_one_chunk_in_time() {
    let mut reader = open(vec![good()]).expect("opened");
    reader.servers.longest = CHUNK;
    assert_eq!(reader.read(0, ALL).expect("read"), good()[..ALL as usize]);
    assert_eq!(reader.servers.now, Duration::ZERO, "without a delay");
}

#[test]
fn read_waits_while_no_server_answers() {
    let mut reader = open(vec![good(), good()]).expect("opened");
    reader.servers.down_until = vec![Duration::from_secs(3600), Duration::MAX];
    assert_eq!(reader.read(4096, 10).expect("read"), good()[4096..4106]);
    assert!(reader.servers.now >= Duration::from_secs(3600));
    reader.servers.down_until = vec![Duration::MAX; 2];
    let error = reader.read(u64::from(ALL) - 10, 10).expect_err("nobody");
    assert_eq!(error.to_string(), "no server answered for 86400 s: down");
    assert!(reader.servers.failed.len() < 50, "a day of failures is a few lines");
}

#[test]
fn wrong_bytes_are_asked_of_the_next_server_and_refused_if_all_are_wrong() {
    let wrong = || flipped(CHUNK * 2 + 77);
    let mut reader = open(vec![wrong(), good()]).expect("its tree is right");
    assert_eq!(reader.read(0, ALL).expect("read"), good()[..ALL as usize]);
    assert_eq!(reader.servers.failed, [format!("0: {WRONG}")]);

    let mut reader = open(vec![wrong(), wrong()]).expect("their trees are right");
    assert!(reader.read(0, 4096).is_ok(), "another chunk");
    assert!(reader.read(CHUNK, 4096).is_ok(), "the wrong chunk was only read ahead");
    let from = CHUNK * 2;
    assert_eq!(reader.read(from, 4096), Err(ReadError::AllWrong { from }));
}

#[test]
fn wrong_tree_is_replaced_and_refused_if_all_are_wrong() {
    let wrong = || flipped(BLOCKS * 4096 + 2 * 4096);
    assert!(open(vec![wrong(), good()]).is_ok());
    let refused = open(vec![wrong()]).map(drop);
    assert!(matches!(refused, Err(ReadError::AllWrong { .. })), "{refused:?}");
}

#[test]
fn bytes_around_the_tree_are_zero() {
    let (file, mut verity) = sample::root(BLOCKS);
    let data = index(BLOCKS * 4096);
    let gap = vec![1; 4096];
    let end = vec![2; 8192];
    let whole = [&file[..data], &gap, &file[data..], &end].concat();
    verity.hash_block += 1;
    let image = image(&whole, verity, 1);
    let mut reader = RootReader::open(&image, Rack::of(vec![whole.clone()])).expect("opened");
    let read = reader.read(0, u32::try_from(whole.len()).expect("small")).expect("read");
    let expected = [&file[..data], &[0; 4096], &file[data..], &[0; 8192]].concat();
    assert!(read == expected);
}

#[test]
fn read_outside_of_the_root_is_refused() {
    let mut reader = open(vec![good()]).expect("opened");
    let size = good().len() as u64;
    assert!(matches!(reader.read(size, 1), Err(ReadError::Outside { .. })));
    assert!(matches!(reader.read(u64::MAX, 1), Err(ReadError::Outside { .. })));
    assert_eq!(reader.read(size, 0), Ok(Vec::new()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_read_returns_the_bytes_of_the_root(reads in proptest::collection::vec((0u64..303 * 4096, 0u32..300_000), 1..6)) {
        let file = good();
        let mut reader = open(vec![flipped(77), file.clone()]).expect("opened");
        for (from, length) in reads {
            match reader.read(from, length) {
                Ok(bytes) => prop_assert_eq!(bytes, &file[index(from)..][..length as usize]),
                Err(_) => prop_assert!(from + u64::from(length) > file.len() as u64),
            }
        }
    }
}
