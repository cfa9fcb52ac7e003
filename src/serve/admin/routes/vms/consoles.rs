//! VM consoles: `console`, an interactive WebSocket, and `logs`, read-only. Both need the operator
//! role, because a guest may print secrets. Binary frames contain bytes, text frames contain notes.
//! The input of a task is such a WebSocket, too.

use crate::admin::{
    ApiState, bind_handlers::Binder, error::Refused, extract::QueryOf, transport::caller::Caller,
};
use axum::{
    Extension,
    body::Body,
    extract::{
        Path, State, WebSocketUpgrade,
        ws::{Message, WebSocket, rejection::WebSocketUpgradeRejection},
    },
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::{
    SinkExt as _, Stream, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use meshd_api::routes as api;
use meshd_central::{
    ConnectError, ConsoleError, ConsoleFrame, ConsoleInput, ConsoleSession, Shared,
};
use meshd_model::fleet::{AuditContext, Verb};
use meshd_proto::{
    shell::InputNote,
    vm::{ConsoleNote, MAX_PIECE},
};
use meshd_types::{CorrelationId, failpoint};
use serde::Deserialize;
use std::{convert::Infallible, pin::pin, time::Duration};
use tokio::{
    sync::mpsc,
    time::{interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Earlier output that a new console shows first, in bytes: about one screen.
const SCREEN: u64 = 4096;
/// Time for which a log waits for its first output before it answers.
const FIRST_OUTPUT: Duration = Duration::from_secs(2);
/// Interval between two pings.
const PING: Duration = Duration::from_secs(20);
/// Timeout for a user to read the last messages and to close the connection.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout while meshd stops, and for users who may read no more.
const LAST_READ_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for a silent operator, and for a guest that does not read.
pub(crate) const SILENCE: Duration = Duration::from_secs(90);

pub(crate) fn bind(binder: Binder) -> Binder {
    binder.get(&api::OPEN_VM_CONSOLE, console).get(&api::GET_VM_CONSOLE_LOG, logs)
}

impl From<ConsoleError> for Refused {
    fn from(error: ConsoleError) -> Self {
        let (status, code) = match error {
            ConsoleError::Vm(error) => return error.into(),
            ConsoleError::Store(error) => return error.into(),
            ConsoleError::Connect(error) => return error.into(),
            ConsoleError::Unplaced(_) => (StatusCode::CONFLICT, "unplaced"),
        };
        Refused::of(status, code, &error)
    }
}

impl From<ConnectError> for Refused {
    fn from(error: ConnectError) -> Self {
        let (status, code) = match error {
            ConnectError::NotLinked(_) => (StatusCode::CONFLICT, "not_linked"),
            ConnectError::NoAnswer { .. } => (StatusCode::GATEWAY_TIMEOUT, "no_answer"),
            ConnectError::TooMany => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        };
        Refused::of(status, code, &error)
    }
}

async fn console(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Extension(correlation): Extension<CorrelationId>,
    Path(vm): Path<String>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refused> {
    let upgrade = upgrade.map_err(|_| Refused::bad_request("this route requires a WebSocket"))?;
    let ApiState { central, shutdown, tasks, .. } = state;
    let context = AuditContext::new(caller.principal.clone(), Verb::VmConsole, correlation);
    let session = central
        .vms
        .open_console(central.vms.resolve_vm(&vm)?, SCREEN, true, Some(&context))
        .await?;
    let task = tasks.token();
    let upgrade = upgrade.max_message_size(MAX_PIECE).max_frame_size(MAX_PIECE);
    Ok(upgrade.on_upgrade(move |socket| async move {
        carry(socket, session, (&central, &caller), SILENCE, &shutdown).await;
        drop(task);
    }))
}

/// Relays until either side ends, the caller loses the permission, or meshd stops. `unread_limit` is
/// the timeout for a program that does not read.
pub(crate) async fn carry(
    socket: WebSocket,
    session: ConsoleSession,
    (central, caller): (&Shared, &Caller),
    unread_limit: Duration,
    shutdown: &CancellationToken,
) {
    let ended = async {
        tokio::select! {
            () = caller.revoked(central) => {}
            () = shutdown.cancelled() => {}
        }
    };
    relay(socket, session, unread_limit, ended).await;
}

async fn relay(
    socket: WebSocket,
    session: ConsoleSession,
    unread_limit: Duration,
    ended: impl Future<Output = ()>,
) {
    let (mut out, mut incoming) = socket.split();
    let ConsoleSession { output, input } = session;
    let mut ended = pin!(ended);
    let has_ended = tokio::select! {
        () = show(&mut out, output) => false,
        () = listen(&mut incoming, &input, unread_limit) => false,
        // This branch also ends a `show` that waits for an operator who does not read.
        () = &mut ended => true,
    };
    // The place of the console is free, and the node gets the rest of the input, before the operator
    // has closed.
    drop(input);
    tokio::select! {
        () = close(&mut out, &mut incoming) => {}
        () = wait_for_user((!has_ended).then_some(ended)) => {}
    }
}

/// Waits for as long as a user may take to read the last messages and to close the connection.
/// `ended` resolves when meshd stops or the user may read no more; `None` if that was so before.
pub(crate) async fn wait_for_user<T>(ended: Option<impl Future<Output = T>>) {
    if let Some(ended) = ended {
        let _ = timeout(READ_TIMEOUT - LAST_READ_TIMEOUT, ended).await;
    }
    sleep(LAST_READ_TIMEOUT).await;
}

/// Sends the close frame, then discards incoming messages until the user closes the connection:
/// `meshd_client::close` has the reason.
pub(crate) async fn close(
    out: &mut SplitSink<WebSocket, Message>,
    incoming: &mut SplitStream<WebSocket>,
) {
    // This send fails if the user closed first. Reading then sends the answer.
    let _ = out.send(Message::Close(None)).await;
    while let Some(Ok(_)) = incoming.next().await {}
}

async fn show(out: &mut SplitSink<WebSocket, Message>, mut output: mpsc::Receiver<ConsoleFrame>) {
    let mut pings = interval(PING);
    loop {
        let message = tokio::select! {
            frame = output.recv() => match frame {
                None => return,
                Some(ConsoleFrame::Bytes(bytes)) => Message::Binary(bytes),
                Some(ConsoleFrame::Note(note)) => Message::Text(serde_json::to_string(&note).unwrap_or_default().into()),
            },
            _ = pings.tick() => Message::Ping(Bytes::new()),
        };
        if out.send(message).await.is_err() {
            return;
        }
    }
}

async fn listen(
    incoming: &mut (impl Stream<Item = Result<Message, axum::Error>> + Unpin),
    typed: &mpsc::Sender<ConsoleInput>,
    unread_limit: Duration,
) {
    let silence = failpoint::time("CONSOLE_SILENCE", SILENCE);
    while let Ok(Some(Ok(message))) = timeout(silence, incoming.next()).await {
        let piece = match message {
            Message::Binary(bytes) => ConsoleInput::Bytes(bytes),
            Message::Text(text) => match serde_json::from_str::<InputNote>(&text) {
                Ok(note) => ConsoleInput::Note(note),
                Err(_) => continue,
            },
            Message::Close(_) => return,
            _ => continue,
        };
        // A guest that reads nothing must not hold a console for longer than an operator who is
        // gone.
        let limit =
            if failpoint::defends("ui-console-ends") { unread_limit } else { Duration::MAX };
        match timeout(limit, typed.send(piece)).await {
            Ok(Ok(())) => {}
            // `show` has the last output of the node, and reports the end.
            Ok(Err(_)) => return sleep(SILENCE).await,
            Err(_) => return,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConsoleLogQuery {
    /// Continues with new output.
    follow: bool,
    /// Maximum number of earlier bytes.
    tail: Option<u64>,
}

async fn logs(
    State(state): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Path(vm): Path<String>,
    QueryOf(query): QueryOf<ConsoleLogQuery>,
) -> Result<Response, Refused> {
    let history = query.tail.unwrap_or(u64::MAX);
    let vms = &state.central.vms;
    let session = vms.open_console(vms.resolve_vm(&vm)?, history, query.follow, None).await?;
    Ok(stream_output(session, None, state, caller))
}

/// Waits for the first output of a log; `None` if the log is empty or nothing arrives in time.
///
/// # Errors
/// The node has no log.
pub(crate) async fn first_output(
    session: &mut ConsoleSession,
) -> Result<Option<ConsoleFrame>, Refused> {
    match timeout(FIRST_OUTPUT, session.output.recv()).await {
        Ok(Some(ConsoleFrame::Note(ConsoleNote::Ended { reason, hint }))) => {
            let hint = hint.unwrap_or_else(|| "retry after the node has started it".to_owned());
            Err(Refused::new(StatusCode::CONFLICT, "no_log", reason).with_hint(hint))
        }
        Ok(first) => Ok(first),
        Err(_) => Ok(None),
    }
}

/// Streams the output of a console until it ends. `first` is output that was already received.
pub(crate) fn stream_output(
    session: ConsoleSession,
    first: Option<ConsoleFrame>,
    state: ApiState,
    caller: Caller,
) -> Response {
    let ApiState { central, shutdown, .. } = state;
    let tail = (session, first, central, caller, shutdown);
    let body = futures_util::stream::unfold(tail, |mut tail| async move {
        let (session, first, central, caller, shutdown) = &mut tail;
        loop {
            let frame = tokio::select! {
                frame = next_frame(session, first) => frame?,
                () = caller.revoked(central) => return None,
                () = shutdown.cancelled() => return None,
            };
            if let Some(bytes) = log_bytes(frame) {
                return Some((Ok::<_, Infallible>(bytes), tail));
            }
        }
    });
    ([(CONTENT_TYPE, "application/octet-stream")], Body::from_stream(body)).into_response()
}

/// Returns what the reader of a log gets for a frame.
fn log_bytes(frame: ConsoleFrame) -> Option<Bytes> {
    let note = match frame {
        ConsoleFrame::Bytes(bytes) => return Some(bytes).filter(|bytes| !bytes.is_empty()),
        ConsoleFrame::Note(ConsoleNote::Lost { bytes }) => {
            format!("{bytes} bytes of output are missing: this reader was too slow")
        }
        ConsoleFrame::Note(ConsoleNote::Ended { reason, .. }) => reason,
        ConsoleFrame::Note(_) => return None,
    };
    Some(format!("\r\n[meshd: {note}]\r\n").into())
}

async fn next_frame(
    session: &mut ConsoleSession,
    first: &mut Option<ConsoleFrame>,
) -> Option<ConsoleFrame> {
    match first.take() {
        Some(frame) => Some(frame),
        None => session.output.recv().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Router, routing::get};
    use hyper_util::{rt::TokioIo, service::TowerToHyperService};
    use std::{
        net::Ipv4Addr,
        sync::{Arc, Mutex},
    };
    use tokio::{
        net::{TcpListener, TcpStream},
        task::yield_now,
    };
    use tokio_tungstenite::{client_async, tungstenite};

    #[tokio::test]
    async fn log_that_a_node_does_not_have_is_refused_with_its_reason() {
        let open = |frames: Vec<ConsoleFrame>| {
            let (sender, output) = mpsc::channel(4);
            frames.into_iter().for_each(|frame| sender.try_send(frame).expect("room"));
            ConsoleSession { output, input: mpsc::channel(1).0 }
        };
        let absent = ConsoleFrame::Note(ConsoleNote::ended("this node has no log of web.0"));
        let refused = first_output(&mut open(vec![absent])).await.expect_err("no log");
        let refused = format!("{refused:?}");
        assert!(refused.contains("no log of web.0") && refused.contains("409"), "{refused}");
        let text = || ConsoleFrame::Bytes(Bytes::from_static(b"x"));
        let first = first_output(&mut open(vec![text()])).await.expect("a log");
        assert!(matches!(first, Some(ConsoleFrame::Bytes(bytes)) if bytes == "x"));
        assert!(first_output(&mut open(Vec::new())).await.expect("an empty log").is_none());
    }

    #[test]
    fn log_has_the_reason_of_its_end_and_what_is_missing() {
        let text = |note| {
            let bytes = log_bytes(ConsoleFrame::Note(note))?;
            Some(String::from_utf8(bytes.into()).expect("text"))
        };
        let ended = text(ConsoleNote::ended("the replica was removed")).expect("a line");
        assert_eq!(ended, "\r\n[meshd: the replica was removed]\r\n");
        let lost = text(ConsoleNote::Lost { bytes: 7 }).expect("a line");
        assert!(lost.contains("7 bytes of output are missing"), "{lost}");
        assert_eq!(text(ConsoleNote::InputQueued), None);
        assert_eq!(log_bytes(ConsoleFrame::Bytes(Bytes::new())), None);
    }

    #[tokio::test]
    async fn console_ends_when_guest_reads_no_input() {
        let (typed, _unread) = mpsc::channel(1);
        let pieces = (0..3).map(|_| Ok(Message::Binary(Bytes::from_static(b"ls"))));
        let mut incoming =
            futures_util::stream::iter(pieces).chain(futures_util::stream::pending());
        let listening = listen(&mut incoming, &typed, Duration::from_millis(1));
        timeout(Duration::from_secs(20), listening).await.expect("the console ends");
        assert_eq!(typed.capacity(), 0, "the first piece waits for the guest");
    }

    async fn until(is_true: impl Fn() -> bool) {
        let waiting = async {
            while !is_true() {
                yield_now().await;
            }
        };
        timeout(Duration::from_secs(20), waiting).await.expect("it becomes true");
    }

    /// A connection that is dropped with unread bytes is reset. The user then fails to answer the
    /// ping, before they read what comes after it.
    #[tokio::test]
    async fn last_output_is_read_though_keys_of_the_user_were_not() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bound");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).await;
        let (far, _) = listener.accept().await.expect("accepted");
        let (shown, output) = mpsc::channel(4);
        let (typed, unread) = mpsc::channel(1);
        let listening = typed.downgrade();
        let once = Arc::new(Mutex::new(Some(ConsoleSession { output, input: typed })));
        let route = get(async move |upgrade: WebSocketUpgrade| {
            let session = once.lock().expect("not poisoned").take().expect("once");
            upgrade.on_upgrade(async move |socket| {
                relay(socket, session, SILENCE, std::future::pending()).await;
            })
        });
        let router = TowerToHyperService::new(Router::new().route("/", route));
        let serving =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), router);
        tokio::spawn(serving.with_upgrades());
        let (mut user, _) =
            client_async("ws://x/", near.expect("connected")).await.expect("upgraded");
        // The second piece waits for the guest; the others are in the socket.
        for _ in 0..64 {
            let keys = tungstenite::Message::Binary(Bytes::from_static(&[b'x'; 8192]));
            user.send(keys).await.expect("sent");
        }
        until(|| !unread.is_empty()).await;
        // The node takes no more keys before it says why.
        drop(unread);
        for _ in 0..100 {
            yield_now().await;
        }
        shown.send(ConsoleFrame::Note(ConsoleNote::ended("released"))).await.expect("taken");
        drop(shown);
        until(|| listening.upgrade().is_none()).await;
        let notes = async {
            let mut notes = Vec::new();
            while let Some(message) = user.next().await {
                match message.expect("no reset") {
                    tungstenite::Message::Text(text) => notes.push(text.to_string()),
                    tungstenite::Message::Close(_) => break,
                    _ => {}
                }
            }
            notes
        };
        let notes = timeout(Duration::from_secs(20), notes).await.expect("it ends");
        assert!(matches!(&notes[..], [note] if note.contains("released")), "{notes:?}");
    }
}
