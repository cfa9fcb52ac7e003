//! Downloads from real servers that end early, or send another file.

use super::*;
use meshd_types::Digest;
use std::{io::Read as _, net::TcpListener, thread};

const SIZE: usize = 1 << 20;

/// Counts retries, and never waits.
#[derive(Default)]
struct Counter {
    causes: Vec<String>,
}

impl Observer for Counter {
    fn progress(&mut self, _received: u64, _size: u64) {}

    fn retry(&mut self, _url: &HttpUrl, cause: &TryError, _delay: Duration) {
        self.causes.push(cause.to_string());
    }

    fn pause(&mut self, _delay: Duration) {}
}

fn content() -> Vec<u8> {
    (0..SIZE).map(|at| u8::try_from(at % 251).expect("below 251")).collect()
}

/// A server that sends at most so many bytes of its file for each request; each number is one
/// request.
fn serve(file: Vec<u8>, limits: &'static [usize]) -> HttpUrl {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for limit in limits {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).expect("a request");
                request.push(byte[0]);
            }
            let text = String::from_utf8(request).expect("ASCII");
            let from = text.split_once("Range: bytes=").and_then(|(_, rest)| rest.split_once('-'));
            let from = from.map_or(0, |(from, _)| from.parse::<usize>().expect("a number"));
            let status = if from == 0 { "200 OK" } else { "206 Partial Content" };
            let length = file.len() - from;
            let last = file.len() - 1;
            let size = file.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nContent-Range: bytes {from}-{last}/{size}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).expect("sent");
            // The client may close first.
            let _ = stream.write_all(&file[from..][..length.min(*limit)]);
        }
    });
    format!("http://{address}/root").parse().expect("a URL")
}

fn fetch(urls: &[HttpUrl]) -> (Result<(), DownloadError>, Vec<u8>, Vec<String>) {
    let mut file = tempfile::tempfile().expect("a file");
    let mut counter = Counter::default();
    let mut transfer = Transfer::new(SIZE as u64, Digest::of(&content()));
    let outcome = download(urls, &mut transfer, &mut file, &mut counter);
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("rewound");
    file.read_to_end(&mut bytes).expect("read");
    (outcome, bytes, counter.causes)
}

#[test]
fn download_continues_at_the_next_server_and_after_a_restart() {
    let one = serve(content(), &[SIZE / 2, SIZE]);
    let two = serve(content(), &[SIZE / 4]);
    let (outcome, bytes, causes) = fetch(&[one, two]);
    outcome.expect("fetched");
    assert_eq!(bytes, content());
    let expected = [SIZE / 2, SIZE / 2 + SIZE / 4]
        .map(|received| format!("the connection ended after {received} of {SIZE} bytes"));
    assert_eq!(causes, expected);
}

#[test]
fn flipped_bit_is_fetched_once_from_each_server_and_refused() {
    let mut flipped = content();
    flipped[SIZE / 3] ^= 1;
    let one = serve(flipped.clone(), &[SIZE]);
    let two = serve(flipped, &[SIZE]);
    let (outcome, _, causes) = fetch(&[one.clone(), two.clone()]);
    let error = outcome.expect_err("refused").to_string();
    assert!(error.starts_with(&format!("fetch {two}: its SHA-256 is ")), "{error}");
    assert_eq!(causes.len(), 1, "{causes:?}");

    let good = serve(content(), &[SIZE]);
    let mut flipped = content();
    flipped[0] ^= 1;
    let (outcome, bytes, _) = fetch(&[serve(flipped, &[SIZE]), good]);
    outcome.expect("the second server has it");
    assert_eq!(bytes, content());
}

#[test]
fn file_that_no_server_has_is_asked_for_once() {
    let other = || serve(b"another file".to_vec(), &[SIZE]);
    let (outcome, _, causes) = fetch(&[other(), other()]);
    let error = outcome.expect_err("refused").to_string();
    assert!(error.ends_with(&format!("it sends a file of 12 bytes, not of {SIZE}")), "{error}");
    assert_eq!(causes.len(), 1, "{causes:?}");

    let (outcome, bytes, _) = fetch(&[other(), serve(content(), &[SIZE])]);
    outcome.expect("the second server has it");
    assert_eq!(bytes, content());
}

#[test]
fn server_that_sends_a_wrong_part_does_not_end_the_download_of_a_right_one() {
    let mut flipped = content();
    flipped[SIZE / 3] ^= 1;
    let bad = serve(flipped, &[SIZE / 2, SIZE / 2, SIZE / 2]);
    // It sends the second half, and then all of it.
    let good = serve(content(), &[SIZE, SIZE]);
    let (outcome, bytes, causes) = fetch(&[bad, good]);
    outcome.expect("fetched");
    assert_eq!(bytes, content());
    assert!(causes.last().expect("a retry").starts_with("its SHA-256 is "), "{causes:?}");
}

#[test]
fn server_below_the_minimum_rate_is_slow_after_half_a_minute() {
    assert!(!is_slow(Duration::from_secs(29), 1));
    assert!(is_slow(Duration::from_secs(30), 1));
    assert!(is_slow(Duration::from_secs(100), 100 * MIN_RATE - 1));
    assert!(!is_slow(Duration::from_secs(100), 100 * MIN_RATE));
}
