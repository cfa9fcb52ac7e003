//! Clients that misuse a connection, and the end of the server.

use super::*;
use crate::connections::limiter::ARRIVING;
use std::time::Instant;

fn quick() -> Limits {
    Limits { head: Duration::from_millis(50), ..Limits::default() }
}

#[tokio::test]
async fn connection_without_complete_head_is_closed() {
    let server = Server::start(quick(), "", "");
    for start in ["", "GET /healthz HT", "GET /healthz HTTP/1.1\r\nhost: x\r\n"] {
        let mut stream = server.connect().await;
        stream.write_all(start.as_bytes()).await.expect("it reads");
        let rest = closed(stream).await;
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{start:?}");
    }
}

#[tokio::test]
async fn connection_is_reused_and_closed_when_idle() {
    // Longer than a busy machine takes from an answer to the next request.
    let server =
        Server::start(Limits { head: Duration::from_secs(3), ..Limits::default() }, "", "");
    let mut stream = BufReader::new(server.connect().await);
    for _ in 0..3 {
        send(stream.get_mut(), "GET", "/healthz", "").await;
        assert_eq!(read_answer(&mut stream, "GET").await.status, 200);
    }
    assert!(closed(stream.into_inner()).await.is_empty());
}

#[tokio::test]
async fn oversized_requests_and_bodies_are_refused() {
    let server = Server::start(Limits::default(), "", "");
    let long = format!("x: {}\r\n", "y".repeat(20_000));
    let many = "x: y\r\n".repeat(100);
    for (headers, status) in [
        (long.as_str(), 431),
        (many.as_str(), 431),
        ("content-length: 5\r\n", 413),
        ("transfer-encoding: chunked\r\n", 413),
        ("content-length: 0\r\n", 200),
    ] {
        let mut stream = server.connect().await;
        // The server may close before it has read all of it.
        let request = format!("GET /healthz HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        let _ = stream.write_all(request.as_bytes()).await;
        let answer = read_answer(&mut BufReader::new(stream), "GET").await;
        assert_eq!(answer.status, status, "{:.20}", headers);
    }
}

#[tokio::test]
async fn malformed_request_closes_only_its_connection() {
    let server = Server::start(Limits::default(), "", "");
    let mut stream = server.connect().await;
    stream
        .write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        .await
        .expect("it reads");
    closed(stream).await;
    assert_eq!(server.ask("GET", "/healthz", "").await.status, 200);
}

#[tokio::test]
async fn connection_above_limit_waits_for_active_ones() {
    let limits = Limits { connections: 1, ..Limits::default() };
    let server = Server::start(limits, "", "");
    let mut first = BufReader::new(server.connect().await);
    send(first.get_mut(), "GET", "/healthz", "").await;
    assert_eq!(read_answer(&mut first, "GET").await.status, 200, "it uses the only connection");
    let mut second = std::pin::pin!(server.ask("GET", "/healthz", ""));
    for _ in 0..20 {
        let started = Instant::now();
        let on_first = async {
            send(first.get_mut(), "GET", "/healthz", "").await;
            read_answer(&mut first, "GET").await.status
        };
        tokio::select! {
            // A connection that was idle for so long, as after a pause of this machine, may be
            // evicted.
            answer = &mut second => {
                assert!(started.elapsed() >= ARRIVING, "it was served although the limit is reached");
                return assert_eq!(answer.status, 200);
            }
            status = on_first => assert_eq!(status, 200),
        }
    }
    drop(first);
    assert_eq!(second.await.status, 200);
}

#[tokio::test]
async fn shutdown_closes_idle_and_waits_limited_time_for_busy_connections() {
    let limits = Limits { drain: Duration::from_millis(50), ..Limits::default() };
    let mut server = Server::start(limits, "", vec![7; 64 << 20]);
    let idle = server.connect().await;
    let mut running = server.connect().await;
    send(&mut running, "GET", &format!("/overlay/{CAPABILITY}/apkovl.tar.gz"), "").await;
    running.read_exact(&mut [0; 100]).await.expect("it begins");
    server.shutdown.cancel();
    let ended = tokio::time::timeout(DEADLINE, &mut server.running).await.expect("in time");
    ended.expect("no panic");
    assert_eq!(server.event().await, "aborted");
    assert!(TcpStream::connect(server.at).await.is_err(), "nobody listens any more");
    closed(idle).await;
}

#[tokio::test]
async fn idle_connection_is_evicted_at_limit() {
    let limits = Limits { connections: 3, ..Limits::default() };
    let server = Server::start(limits, "", "");
    let mut hoard = Vec::new();
    for _ in 0..3 {
        hoard.push(server.connect().await);
    }
    for _ in 0..3 {
        assert_eq!(server.ask("GET", "/healthz", "").await.status, 200);
    }
    closed(hoard.remove(0)).await;
}

#[tokio::test]
async fn response_below_minimum_rate_is_aborted() {
    const LARGE: usize = 64 << 20;
    let timeouts =
        WriteTimeouts { response: Duration::ZERO, rate: u64::MAX, ..Limits::default().timeouts };
    let mut server = Server::start(Limits { timeouts, ..Limits::default() }, "", vec![7; LARGE]);
    let mut stream = server.connect().await;
    send(&mut stream, "GET", &format!("/overlay/{CAPABILITY}/apkovl.tar.gz"), "").await;
    assert!(closed(stream).await.len() < LARGE);
    assert_eq!(server.event().await, "aborted");
}

#[tokio::test]
async fn thousand_connections_are_served_concurrently() {
    let blob = vec![7; 100_000];
    let path = format!("/blob/{}/kernel", Digest::of(&blob));
    let server = Server::start(Limits::default(), blob, "");
    let mut streams = Vec::new();
    for _ in 0..1000 {
        streams.push(BufReader::new(server.connect().await));
    }
    for stream in &mut streams {
        send(stream.get_mut(), "GET", &path, "").await;
    }
    for stream in &mut streams {
        let answer = read_answer(stream, "GET").await;
        assert_eq!((answer.status, answer.body.len()), (200, 100_000));
    }
}

#[tokio::test]
async fn request_flood_of_one_client_is_limited() {
    let server = Server::start(Limits { requests_per_second: 5, ..Limits::default() }, "", "");
    let other = tokio::net::TcpSocket::new_v4().expect("a socket");
    other.bind("127.0.0.2:0".parse().expect("an address")).expect("loopback has many");
    let mut flood = BufReader::new(server.connect().await);
    let mut limited = None;
    for _ in 0..500 {
        send(flood.get_mut(), "GET", "/boot/script?mac=52:54:00:12:34:56", "").await;
        limited = Some(read_answer(&mut flood, "GET").await).filter(|answer| answer.status == 429);
        if limited.is_some() {
            break;
        }
    }
    assert_eq!(limited.expect("more than five a second").header("retry-after"), Some("1"));
    let mut other = BufReader::new(other.connect(server.at).await.expect("it listens"));
    send(other.get_mut(), "GET", "/boot/script?mac=52:54:00:12:34:57", "").await;
    assert_eq!(read_answer(&mut other, "GET").await.status, 200, "another machine is served");
}
