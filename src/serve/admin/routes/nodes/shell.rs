//! Shells of nodes, and what shells of guests share with them: a WebSocket for the role admin. A
//! shell ends with its program, its user, the token, meshd, the link's node, or its limits; the
//! reason is for the user and the audit log.

use crate::admin::{
    ApiState,
    bind_handlers::Binder,
    error::Refused,
    extract::QueryOf,
    routes::vms::consoles::{close, wait_for_user},
    transport::caller::Caller,
};
use axum::{
    extract::{
        FromRequestParts, Path, State, WebSocketUpgrade,
        ws::{Message, WebSocket, rejection::WebSocketUpgradeRejection},
    },
    http::{StatusCode, request::Parts},
    response::Response,
};
use bytes::Bytes;
use futures_util::{SinkExt as _, Stream, StreamExt as _, stream::SplitSink};
use meshd_api::routes as api;
use meshd_central::{
    ConsoleFrame, ConsoleInput, ConsoleSession, GuestShellRequest, ReplicaExecRequest, Shared,
    ShellError, ShellLimits, ShellTerminal,
};
use meshd_model::fleet::{AuditContext, Verb};
use meshd_proto::{
    shell::{InputNote, TerminalName, WindowSize},
    vm::{ConsoleNote, MAX_PIECE},
};
use meshd_types::{NodeId, SystemUuid, failpoint};
use serde::Deserialize;
use std::{pin::pin, time::Duration};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, interval, sleep, sleep_until, timeout},
};

/// Interval between two pings.
const PING: Duration = Duration::from_secs(20);
/// Timeout for a user whose terminal does not answer.
const SILENCE: Duration = Duration::from_secs(90);
/// Why a shell ended that its user did not see.
const LEFT_EARLY: &str = "the user left before it began";

pub(crate) fn bind(binder: Binder) -> Binder {
    binder.session(&api::OPEN_NODE_SHELL, Verb::NodeShell, shell)
}

impl From<ShellError> for Refused {
    fn from(error: ShellError) -> Self {
        match error {
            ShellError::Connect(error) => error.into(),
            ShellError::Store(error) => error.into(),
            ShellError::RootForbidden => {
                Refused::of(StatusCode::FORBIDDEN, "root_forbidden", &error)
            }
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ShellQuery {
    rows: Option<u16>,
    columns: Option<u16>,
    terminal: Option<TerminalName>,
}

/// Returns the terminal that a caller describes; missing parts are those of the smallest terminal.
pub(crate) fn shell_terminal(
    rows: Option<u16>,
    columns: Option<u16>,
    name: Option<TerminalName>,
) -> ShellTerminal {
    let default = WindowSize::default();
    let window =
        WindowSize::new(rows.unwrap_or(default.rows()), columns.unwrap_or(default.columns()));
    ShellTerminal { window, name: name.unwrap_or_default() }
}

/// What a shell is opened on.
#[derive(Clone, Debug)]
pub(crate) enum ShellTarget {
    Node(NodeId, ShellTerminal),
    Guest(SystemUuid, GuestShellRequest),
    /// A replica of a container.
    Replica(String, ReplicaExecRequest),
}

impl ShellTarget {
    async fn open(
        self,
        central: &Shared,
        context: &AuditContext,
    ) -> Result<ConsoleSession, Refused> {
        Ok(match self {
            ShellTarget::Node(node, terminal) => {
                central.tasks.open_shell(node, terminal, context).await?
            }
            ShellTarget::Guest(vm, request) => {
                central.vms.open_guest_shell(vm, request, context).await?
            }
            ShellTarget::Replica(replica, request) => {
                central.containers.open_exec(&replica, request, context).await?
            }
        })
    }

    /// Returns false once the site forbids it.
    fn is_permitted(&self, central: &Shared) -> bool {
        match self {
            ShellTarget::Node(..) => central.tasks.check_shells().is_ok(),
            ShellTarget::Guest(..) => central.vms.check_guest_shells().is_ok(),
            // Its program has the rights of the container only.
            ShellTarget::Replica(..) => true,
        }
    }

    /// Why it ends once the site forbids it.
    fn prohibition(&self) -> &'static str {
        match self {
            ShellTarget::Node(..) => "the site file forbids shells: [agent].root_tasks = false",
            ShellTarget::Guest(..) => {
                "the site file forbids shells of guests: [agent].guest_shells = false"
            }
            ShellTarget::Replica(..) => "the site file forbids it",
        }
    }

    async fn ended(&self, central: &Shared, why: &str, context: &AuditContext) {
        match self {
            ShellTarget::Node(node, _) => central.tasks.shell_ended(*node, why, context).await,
            ShellTarget::Guest(vm, _) => central.vms.guest_shell_ended(*vm, why, context).await,
            ShellTarget::Replica(replica, _) => {
                central.containers.exec_ended(replica, why, context).await;
            }
        }
    }
}

/// The user of a shell, with the context of the order.
pub(crate) struct ShellUser {
    caller: Caller,
    context: AuditContext,
}

impl FromRequestParts<ApiState> for ShellUser {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Refused> {
        let context = AuditContext::from_request_parts(parts, state).await?;
        let caller = parts.extensions.get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Refused::internal("the request has no caller"))?;
        Ok(ShellUser { caller, context })
    }
}

async fn shell(
    State(state): State<ApiState>,
    user: ShellUser,
    Path(node): Path<String>,
    QueryOf(query): QueryOf<ShellQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refused> {
    state.central.tasks.check_shells()?;
    let node = state.central.nodes.resolve(&node)?;
    let terminal = shell_terminal(query.rows, query.columns, query.terminal);
    serve(state, user, ShellTarget::Node(node, terminal), upgrade).await
}

/// Opens a shell, and relays it until it ends.
pub(crate) async fn serve(
    state: ApiState,
    user: ShellUser,
    shell: ShellTarget,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refused> {
    let upgrade = upgrade.map_err(|_| Refused::bad_request("this route requires a WebSocket"))?;
    let ApiState { central, shutdown, tasks, .. } = state;
    let ShellUser { caller, context } = user;
    let (deliver, opened) = oneshot::channel();
    let opening = central.clone();
    let order = context.clone();
    let new = shell.clone();
    // Goes on if the user leaves meanwhile: the begin is recorded, and the end must be.
    tasks.spawn(async move {
        let opened = new.clone().open(&opening, &order).await;
        if let Err(Ok(session)) = deliver.send(opened) {
            drop(session);
            new.ended(&opening, LEFT_EARLY, &order).await;
        }
    });
    let session =
        opened.await.map_err(|_| Refused::internal("opening the shell was interrupted"))??;
    let task = tasks.token();
    let of_failed = central.clone();
    let failed_context = context.clone();
    let failed = shell.clone();
    let upgrade = upgrade.max_message_size(MAX_PIECE).max_frame_size(MAX_PIECE).on_failed_upgrade(
        move |_| {
            tokio::spawn(async move {
                failed.ended(&of_failed, LEFT_EARLY, &failed_context).await;
            });
        },
    );
    Ok(upgrade.on_upgrade(move |socket| async move {
        let ended = async {
            tokio::select! {
                () = caller.revoked(&central), if failpoint::defends("shell-revocation") => {
                    "the token of its user was revoked or has expired"
                }
                () = central.enrolment.until_revoked(|| shell.is_permitted(&central)) => {
                    shell.prohibition()
                }
                () = shutdown.cancelled() => "meshd stops",
            }
        };
        let why = carry(socket, session, ShellLimits::default(), ended).await;
        shell.ended(&central, &why, &context).await;
        drop(task);
    }))
}

/// Why a shell ended.
struct ShellEnd {
    /// For the audit log.
    why: String,
    /// The user does not know yet.
    is_news: bool,
}

impl ShellEnd {
    fn news(why: impl Into<String>) -> Self {
        ShellEnd { why: why.into(), is_news: true }
    }

    fn known(why: impl Into<String>) -> Self {
        ShellEnd { why: why.into(), is_news: false }
    }
}

/// Relays a shell until it ends. Returns the reason.
pub(crate) async fn carry(
    socket: WebSocket,
    session: ConsoleSession,
    limits: ShellLimits,
    ended: impl Future<Output = &'static str>,
) -> String {
    let (mut out, mut incoming) = socket.split();
    let ConsoleSession { output, input } = session;
    let typed_at = watch::Sender::new(Instant::now());
    let relayed = async {
        tokio::select! {
            end = show(&mut out, output, &typed_at, limits) => end,
            () = type_in(&mut incoming, &input, &typed_at) => ShellEnd::known("its user left"),
            // These branches also end a `show` that waits for a user who does not read.
            () = idle(&typed_at, limits.idle), if failpoint::defends("shell-idle") => {
                ShellEnd::news(format!("no input for {}", span(limits.idle)))
            }
            () = sleep(limits.total) => {
                ShellEnd::news(format!("it was open for {}", span(limits.total)))
            }
        }
    };
    let mut ended = pin!(ended);
    let (end, has_ended) = tokio::select! {
        // What ends the shell may end the connection of the node, too.
        biased;
        why = &mut ended => (ShellEnd::news(why), true),
        end = relayed => (end, false),
    };
    // The node learns of the end before the user: the user may be gone.
    drop(input);
    let goodbye = async {
        if end.is_news {
            let _ = out.send(note(&ConsoleNote::ended(end.why.clone()))).await;
        }
        close(&mut out, &mut incoming).await;
    };
    tokio::select! {
        () = goodbye => {}
        () = wait_for_user((!has_ended).then_some(ended)) => {}
    }
    end.why
}

fn note(note: &ConsoleNote) -> Message {
    Message::Text(serde_json::to_string(note).unwrap_or_default().into())
}

fn span(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds % 3600 == 0 => format!("{} h", seconds / 3600),
        seconds if seconds % 60 == 0 => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

/// Resolves when nothing was typed for `limit`.
async fn idle(typed_at: &watch::Sender<Instant>, limit: Duration) {
    loop {
        let due = *typed_at.borrow() + limit;
        if due <= Instant::now() {
            return;
        }
        sleep_until(due).await;
    }
}

async fn show(
    out: &mut SplitSink<WebSocket, Message>,
    mut output: mpsc::Receiver<ConsoleFrame>,
    typed_at: &watch::Sender<Instant>,
    limits: ShellLimits,
) -> ShellEnd {
    let mut pings = interval(PING);
    let mut warned = None;
    loop {
        let last = *typed_at.borrow();
        let warning = last + limits.idle.saturating_sub(limits.warning);
        let (message, end) = tokio::select! {
            frame = output.recv() => match frame {
                None => {
                    let why = "the connection to the node was lost: its agent restarted, or the node is down";
                    return ShellEnd::news(why);
                }
                Some(ConsoleFrame::Bytes(bytes)) => (Message::Binary(bytes), None),
                Some(ConsoleFrame::Note(told)) => {
                    let end = match &told {
                        ConsoleNote::Exited { code } => Some(format!("exit code {code}")),
                        ConsoleNote::Ended { reason, .. } => Some(reason.clone()),
                        _ => None,
                    };
                    (note(&told), end)
                }
            },
            _ = pings.tick() => (Message::Ping(Bytes::new()), None),
            () = sleep_until(warning), if warned != Some(last) => {
                // Keys that were typed meanwhile begin a new time.
                if *typed_at.borrow() != last {
                    continue;
                }
                warned = Some(last);
                let reason = "no input".to_owned();
                (note(&ConsoleNote::EndsSoon { seconds: limits.warning.as_secs(), reason }), None)
            }
        };
        if out.send(message).await.is_err() {
            return ShellEnd::known("the connection of its user broke");
        }
        if let Some(why) = end {
            return ShellEnd::known(why);
        }
    }
}

/// Passes input on until the user leaves. A program that reads nothing holds up the input, and
/// thereby the time without input goes on.
async fn type_in(
    mut incoming: impl Stream<Item = Result<Message, axum::Error>> + Unpin,
    input: &mpsc::Sender<ConsoleInput>,
    typed_at: &watch::Sender<Instant>,
) {
    while let Ok(Some(Ok(message))) = timeout(SILENCE, incoming.next()).await {
        let piece = match message {
            Message::Binary(bytes) => {
                typed_at.send_replace(Instant::now());
                ConsoleInput::Bytes(bytes)
            }
            Message::Text(text) => match serde_json::from_str(&text) {
                Ok(resize @ InputNote::Resize { .. }) => ConsoleInput::Note(resize),
                _ => continue,
            },
            Message::Close(_) => return,
            _ => continue,
        };
        if input.send(piece).await.is_err() {
            // `show` reports the end.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests;
