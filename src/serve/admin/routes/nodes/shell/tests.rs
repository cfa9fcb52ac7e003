//! A shell over a connection in memory, whose node is the test.

use super::*;
use axum::{Router, routing::get};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use std::sync::{Arc, Mutex};
use tokio::io::{DuplexStream, duplex};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite};

/// How long a test waits for what must happen.
const DEADLINE: Duration = Duration::from_secs(60);

struct Shell {
    user: WebSocketStream<DuplexStream>,
    /// The node's side.
    output: mpsc::Sender<ConsoleFrame>,
    input: mpsc::Receiver<ConsoleInput>,
    why: oneshot::Receiver<String>,
    end: Option<oneshot::Sender<&'static str>>,
}

impl Shell {
    async fn open(limits: ShellLimits) -> Self {
        let ((show, output), (typed, input)) = (mpsc::channel(4), mpsc::channel(4));
        let (tell, why) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let session = ConsoleSession { output, input: typed };
        let once = Arc::new(Mutex::new(Some((session, tell, ended))));
        let route = get(async move |upgrade: WebSocketUpgrade| {
            let (session, tell, ended) = once.lock().expect("not poisoned").take().expect("once");
            upgrade.on_upgrade(async move |socket| {
                let ended = async { ended.await.unwrap_or("the test is over") };
                let why = carry(socket, session, limits, ended).await;
                let _ = tell.send(why);
            })
        });
        let (near, far) = duplex(4096);
        let router = TowerToHyperService::new(Router::new().route("/", route));
        let serving =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), router);
        tokio::spawn(serving.with_upgrades());
        let (user, _) = client_async("ws://x/", near).await.expect("upgraded");
        Shell { user, output: show, input, why, end: Some(end) }
    }

    /// Reads until the end of the connection; returns the notes.
    async fn notes(&mut self) -> Vec<ConsoleNote> {
        let mut notes = Vec::new();
        while let Some(Ok(message)) = self.user.next().await {
            if let tungstenite::Message::Text(text) = message {
                notes.push(serde_json::from_str(&text).expect("a note"));
            }
        }
        notes
    }
}

#[tokio::test]
async fn idle_shell_ends_after_a_warning_though_output_goes_on() {
    let seconds = Duration::from_secs;
    let limits = ShellLimits { idle: seconds(3), warning: seconds(1), ..ShellLimits::default() };
    let mut shell = Shell::open(limits).await;
    // A program like `top` writes for ever.
    let output = shell.output.clone();
    tokio::spawn(async move {
        let mut screens = interval(Duration::from_millis(20));
        loop {
            screens.tick().await;
            if output.send(ConsoleFrame::Bytes(Bytes::from_static(b"."))).await.is_err() {
                return;
            }
        }
    });
    let notes = timeout(DEADLINE, shell.notes()).await.expect("it ends");
    let expected = [
        ConsoleNote::EndsSoon { seconds: 1, reason: "no input".to_owned() },
        ConsoleNote::ended("no input for 3 s"),
    ];
    assert_eq!(notes, expected);
    assert_eq!(shell.why.await.as_deref(), Ok("no input for 3 s"));
    assert!(shell.input.recv().await.is_none(), "the node learns of it");
}

#[tokio::test]
async fn busy_shell_ends_after_its_total_time() {
    let limits = ShellLimits { total: Duration::from_secs(1), ..ShellLimits::default() };
    let mut shell = Shell::open(limits).await;
    shell.user.send(tungstenite::Message::Binary(Bytes::from_static(b"l"))).await.expect("sent");
    let ended = ConsoleNote::ended("it was open for 1 s");
    assert_eq!(timeout(DEADLINE, shell.notes()).await.expect("it ends"), [ended]);
    assert_eq!(shell.why.await.as_deref(), Ok("it was open for 1 s"));
    let default = ShellLimits::default();
    assert_eq!((span(default.idle), span(default.total)), ("30 min".into(), "12 h".into()));
}

#[tokio::test]
async fn window_size_and_keys_reach_the_node_and_its_exit_code_the_user() {
    let mut shell = Shell::open(ShellLimits::default()).await;
    let resize = r#"{"note":"resize","window":[50,65535]}"#;
    shell.user.send(tungstenite::Message::Text(resize.into())).await.expect("sent");
    shell.user.send(tungstenite::Message::Text("{\"note\":\"end\"}".into())).await.expect("sent");
    shell.user.send(tungstenite::Message::Binary(Bytes::from_static(b"\x03"))).await.expect("sent");
    let Some(ConsoleInput::Note(InputNote::Resize { window })) = shell.input.recv().await else {
        panic!("the size comes first");
    };
    assert_eq!((window.rows(), window.columns()), (50, 1000));
    let Some(ConsoleInput::Bytes(keys)) = shell.input.recv().await else {
        panic!("a shell has no end of input");
    };
    assert_eq!(&keys[..], b"\x03");
    let exited = ConsoleNote::Exited { code: 7 };
    shell.output.send(ConsoleFrame::Note(exited.clone())).await.expect("taken");
    assert_eq!(shell.notes().await, [exited]);
    assert_eq!(shell.why.await.as_deref(), Ok("exit code 7"));
}

#[tokio::test]
async fn lost_node_and_leaving_user_end_a_shell_with_their_reason() {
    let mut lost = Shell::open(ShellLimits::default()).await;
    drop(std::mem::replace(&mut lost.output, mpsc::channel(1).0));
    let notes = lost.notes().await;
    assert!(
        matches!(&notes[..], [ConsoleNote::Ended { reason, .. }] if reason.contains("was lost")),
        "{notes:?}"
    );
    let mut left = Shell::open(ShellLimits::default()).await;
    left.user.close(None).await.expect("closed");
    assert_eq!(left.why.await.as_deref(), Ok("its user left"));
    assert!(left.input.recv().await.is_none(), "the node learns of it");

    let mut stopped = Shell::open(ShellLimits::default()).await;
    stopped.end.take().expect("once").send("meshd stops").expect("it runs");
    let ended = ConsoleNote::ended("meshd stops");
    assert_eq!(stopped.notes().await, std::slice::from_ref(&ended));

    // A stop of meshd ends the connection of the node, too.
    for _ in 0..20 {
        let mut stopped = Shell::open(ShellLimits::default()).await;
        stopped.end.take().expect("once").send("meshd stops").expect("it runs");
        drop(std::mem::replace(&mut stopped.output, mpsc::channel(1).0));
        assert_eq!(stopped.notes().await, std::slice::from_ref(&ended));
    }
}
