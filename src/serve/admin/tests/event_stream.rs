//! `/v1/events/stream`: new events, replay after the last one that a reader has, and `lag`.

use super::*;

/// Reads the stream until its text has `expected`.
async fn read_until(
    fixture: &Fixture,
    headers: &[(&'static str, &str)],
    path: &str,
    expected: &str,
) -> String {
    let response = fixture.request("GET", path, "", headers).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    let mut text = String::new();
    while !text.contains(expected) {
        let frame =
            tokio::time::timeout(Duration::from_secs(60), body.frame()).await.expect("in time");
        let bytes = frame.expect("it does not end").expect("read").into_data().expect("data");
        text.push_str(std::str::from_utf8(&bytes).expect("UTF-8"));
        if text == ":\n\n" && headers.is_empty() {
            fixture.record("new").await;
        }
    }
    text
}

/// Numbers of the messages of a kind.
fn ids(text: &str, kind: &str) -> Vec<u64> {
    let messages =
        text.split("\n\n").filter(|message| message.contains(&format!("event: {kind}\n")));
    let id = |message: &str| {
        message.lines().find_map(|line| line.strip_prefix("id: ")).expect("an ID").to_owned()
    };
    messages.map(|message| id(message).parse().expect("a number")).collect()
}

/// Numbers of recorded events.
async fn numbers(fixture: &Fixture, path: &str) -> Vec<u64> {
    let body = fixture
        .send("GET", path, "")
        .await
        .into_body()
        .collect()
        .await
        .expect("a whole body")
        .to_bytes();
    let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice::<EventView>(line).expect("an event").seq.0).collect()
}

#[tokio::test]
async fn stream_without_last_event_id_starts_with_new_events() {
    let fixture = Fixture::start().await;
    fixture.record("old").await;
    let text = read_until(&fixture, &[], "/v1/events/stream", "\"new\"").await;
    assert!(!text.contains("\"old\""), "{text}");
}

#[tokio::test]
async fn stream_resumes_after_last_event_id() {
    let fixture = Fixture::start().await;
    for detail in ["one", "two", "three"] {
        fixture.record(detail).await;
    }
    let all = numbers(&fixture, "/v1/events?kind=profile_chosen").await;
    let [one, two, three] = all[..] else { panic!("{all:?}") };
    let path = "/v1/events/stream?kind=profile_chosen";
    let text =
        read_until(&fixture, &[("last-event-id", &one.to_string())], path, "\"three\"").await;
    assert_eq!(ids(&text, "event"), [two, three], "{text}");
    assert!(ids(&text, "lag").is_empty());
}

#[tokio::test]
async fn stream_with_future_event_id_gets_lag() {
    let fixture = Fixture::start().await;
    fixture.record("one").await;
    let all = numbers(&fixture, "/v1/events").await;
    // As after the restoration of a backup: the reader has seen what is not on record.
    let text =
        read_until(&fixture, &[("last-event-id", "1000000")], "/v1/events/stream", "event: lag")
            .await;
    assert_eq!(ids(&text, "lag"), [*all.last().expect("one")], "{text}");
    let odd = fixture.send("GET", "/v1/events/stream?after=newest", "").await;
    assert_eq!(odd.status(), StatusCode::BAD_REQUEST);
}
