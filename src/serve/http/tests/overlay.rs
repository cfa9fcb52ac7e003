//! An overlay is served once, completely, to one client at a time.

use super::*;

/// More than any socket holds, so that a transfer stops until the client reads.
const LARGE: usize = 64 << 20;

fn path() -> String {
    format!("/overlay/{CAPABILITY}/overlay.cpio.gz")
}

#[tokio::test]
async fn overlay_capability_is_spent_after_last_byte() {
    let mut server = Server::start(Limits::default(), "", "an overlay");
    let answer = server.ask("GET", &path(), "range: bytes=0-1\r\n").await;
    assert_eq!(
        (answer.status, answer.body.as_slice()),
        (200, b"an overlay".as_slice()),
        "a range is not read"
    );
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(server.event().await, "spent");
    assert_eq!(server.ask("GET", &path(), "").await.status, 410);
    assert_eq!(server.ask("HEAD", &path(), "").await.status, 410);
}

#[tokio::test]
async fn aborted_overlay_transfer_spends_nothing_and_concurrent_one_waits() {
    let mut server = Server::start(Limits::default(), "", vec![7; LARGE]);
    let mut first = server.connect().await;
    send(&mut first, "GET", &path(), "").await;
    let mut begun = [0; 1000];
    first.read_exact(&mut begun).await.expect("it begins");
    let second = server.ask("GET", &path(), "").await;
    assert_eq!((second.status, second.header("retry-after")), (503, Some("1")));
    drop(first);
    assert_eq!(server.event().await, "aborted");
    let again = server.ask("GET", &path(), "").await;
    assert_eq!((again.status, again.body.len()), (200, LARGE));
    assert_eq!(server.event().await, "spent");
}

#[tokio::test]
async fn incomplete_overlay_transfer_spends_nothing() {
    let mut server = Server::start(Limits::default(), "", vec![7; LARGE]);
    let mut stream = server.connect().await;
    send(&mut stream, "GET", &path(), "").await;
    // The rest is larger than both socket buffers, so the server cannot have written it.
    let mut most = vec![0; LARGE / 2];
    stream.read_exact(&mut most).await.expect("half of it comes");
    assert!(server.events.try_recv().is_err(), "it is not spent while bytes are left");
    drop(stream);
    assert_eq!(server.event().await, "aborted");
}

#[tokio::test]
async fn stalled_overlay_client_is_aborted() {
    let timeouts = WriteTimeouts { write: Duration::from_millis(50), ..Limits::default().timeouts };
    let limits = Limits { timeouts, ..Limits::default() };
    let mut server = Server::start(limits, "", vec![7; LARGE]);
    let mut stream = server.connect().await;
    send(&mut stream, "GET", &path(), "").await;
    assert_eq!(server.event().await, "aborted");
    drop(stream);
}
