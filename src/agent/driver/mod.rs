//! Gives the machine events, and does what it says. One task, one connection at a time; what takes time runs beside it
//! and comes back as an event.

mod edge;

use self::edge::{Outcomes, log, random, run_program, source, wall, with_ticket};
use super::{
    call::{self, CallError, Read, Socket},
    checks,
    facts::{self, Tree},
    files::{self, FileError},
    keys::{KeyError, Keys},
    machine::{Action, Event, Life, Machine, Now},
    units,
};
use crate::wire::{
    self, AgentConfig, BootPart, EnrolRequest, EnrolResponse, FromAgent, Hello, PendingHello, PendingReply,
    RenewRequest,
};
use futures_util::{SinkExt as _, StreamExt as _};
use serde::Serialize;
use std::{
    collections::VecDeque,
    future::{Future, pending},
    path::PathBuf,
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_tungstenite::tungstenite::{Bytes, Message};
use tokio_util::sync::CancellationToken;

/// How long one message may take to leave this machine.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Where the agent finds its things.
#[derive(Clone, Debug)]
pub struct Options {
    /// Public configuration, normally [`wire::AGENT_CONFIG_FILE`].
    pub config: PathBuf,
    /// Part of this boot, normally [`wire::BOOT_FILE`].
    pub boot_file: PathBuf,
    /// A ticket for a machine that is not netbooted. What it says is taken into the state folder, in place of `config` and
    /// `boot_file`; once it is there the ticket is not needed any more.
    pub token_file: Option<PathBuf>,
    /// Key and certificate; tmpfs.
    pub state_dir: PathBuf,
    /// Root of the file system that facts, checks and the CA certificate are read from.
    pub root: PathBuf,
    /// Program and arguments that restart the machine.
    pub reboot: Vec<String>,
}

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A file of the overlay.
    #[error(transparent)]
    File(#[from] FileError),
    /// Keys.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// What runs beside the driver and comes back.
enum Done {
    /// An event for the machine.
    Event(Event),
    /// A connection, and which kind.
    Open(Box<Socket>, Kind),
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Link,
    Pending,
}

struct Driver {
    options: Options,
    tree: Tree,
    config: AgentConfig,
    boot: BootPart,
    keys: Keys,
    started: Instant,
    socket: Option<(Box<Socket>, Kind)>,
    /// The call that is under way; given up as a whole by [`Action::Close`].
    call: JoinSet<Done>,
    /// Checks and the reboot; never given up.
    work: JoinSet<Done>,
    events: VecDeque<Event>,
    outcomes: Outcomes,
}

/// Runs the agent until `shutdown`.
///
/// # Errors
/// Only at the start: files of the overlay that are missing or damaged. Later faults are logged and tried again.
pub async fn run(options: Options, shutdown: CancellationToken) -> Result<(), RunError> {
    let options = with_ticket(options)?;
    let config = files::config(&options.config)?;
    let boot = files::boot(&options.boot_file, &config)?;
    let tree = Tree::new(&options.root);
    let ca_file = tree.path(&config.ca_file);
    let (keys, life) = Keys::open(&options.state_dir, boot.roots_pem.as_deref(), &ca_file, config.node)?;
    let mut machine = Machine::new(config.node, boot.token.is_some(), life);
    let outcomes = Outcomes::open(&options.state_dir);
    machine.remember(outcomes.all());
    tracing::info!(node = %config.node, session = %boot.session, profile = config.profile, version = super::version(),
        "mesh-agent started");
    let mut driver = Driver {
        options,
        tree,
        config,
        boot,
        keys,
        started: Instant::now(),
        socket: None,
        call: JoinSet::new(),
        work: JoinSet::new(),
        events: VecDeque::new(),
        outcomes,
    };
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => break,
            event = driver.next(machine.deadline()) => event,
        };
        let Some(event) = event else { continue };
        log(&event);
        let before = machine.state();
        let actions = machine.on(driver.now(), random(), event);
        if machine.state() != before {
            tracing::info!(from = before, to = machine.state(), "state");
        }
        for action in actions {
            driver.perform(action).await;
        }
    }
    driver.hang_up().await;
    Ok(())
}

impl Driver {
    fn now(&self) -> Now {
        Now { timer: self.started.elapsed(), wall: wall() }
    }

    /// Waits for the next event; `None` when what came is none. Cancel-safe.
    async fn next(&mut self, deadline: Option<Duration>) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        let due = deadline.map(|at| self.started + at);
        let done = tokio::select! {
            () = async { match due { Some(due) => sleep_until(due).await, None => pending().await } } => {
                return Some(Event::Timer);
            }
            message = receive(&mut self.socket) => return self.read(message),
            Some(done) = self.call.join_next() => done,
            Some(done) = self.work.join_next() => done,
        };
        match done {
            Ok(Done::Event(event)) => Some(event),
            Ok(Done::Open(socket, kind)) => {
                self.socket = Some((socket, kind));
                (kind == Kind::Link).then_some(Event::Connected)
            }
            Err(error) => Some(Event::Lost(format!("a task of the agent failed: {error}"))),
        }
    }

    fn read(&mut self, message: Result<Message, String>) -> Option<Event> {
        let kind = self.socket.as_ref().map(|(_, kind)| *kind);
        let text = match message {
            Ok(Message::Text(text)) => text,
            Ok(Message::Close(frame)) => {
                self.socket = None;
                let reason = frame.map(|frame| frame.reason.to_string()).unwrap_or_default();
                return Some(Event::Lost(format!("the central node closed the connection: {reason}")));
            }
            Ok(_) => return Some(Event::Alive),
            Err(reason) => {
                self.socket = None;
                return Some(Event::Lost(reason));
            }
        };
        if kind == Some(Kind::Pending) {
            let reply = serde_json::from_str::<PendingReply>(&text).ok();
            return reply.map(Event::Pending);
        }
        Some(match call::read(&text) {
            Read::Message(message) => Event::Heard(message),
            Read::UnknownTask(task) => Event::UnknownTask(task),
            Read::Unreadable => Event::Alive,
        })
    }

    async fn perform(&mut self, action: Action) {
        match action {
            Action::Enrol => self.enrol(),
            Action::Renew => self.renew(),
            Action::OpenPending { reason } => self.open_pending(reason),
            Action::OpenLink => self.open_link(),
            Action::Vm(order) => tracing::warn!(uuid = %order.uuid, "this agent runs no virtual machines yet"),
            Action::Close => {
                self.call = JoinSet::new();
                self.hang_up().await;
            }
            Action::ForgetToken => {
                if let Err(error) = files::forget_token(&self.options.boot_file, &self.boot) {
                    tracing::error!(%error, cause = source(&error), "the used token stays in its file");
                }
                self.boot.token = None;
            }
            Action::Keep(response) => {
                let life = Life::of(&response, wall());
                if let Err(error) = self.keys.keep(&response, life) {
                    tracing::error!(%error, cause = source(&error), "the certificate is not kept");
                }
            }
            Action::Trust(roots_pem) => {
                if let Err(error) = self.keys.trust(&roots_pem) {
                    tracing::error!(%error, cause = source(&error), "the new roots are not kept");
                }
            }
            Action::DropCertificate => self.keys.drop_certificate(),
            Action::Hello => {
                let facts = facts::collect(&self.tree, Some(&self.config), Some(&self.boot));
                let (node, session) = (self.config.node, self.boot.session);
                let hello = Hello { version: wire::VERSION, node, session, facts };
                self.say(&FromAgent::Hello(Box::new(hello))).await;
            }
            Action::Heartbeat => {
                self.say(&FromAgent::Heartbeat(facts::heartbeat(&self.tree))).await;
                self.send(Message::Ping(Bytes::new())).await;
            }
            Action::Say(message) => {
                self.outcomes.write_down(&message);
                self.say(&message).await;
                if let FromAgent::Checks { checks } = &message {
                    let (failures, warnings) = checks::tally(checks);
                    tracing::info!(failures, warnings, "the checks are told");
                }
            }
            Action::AskRenewal => match self.keys.request() {
                Ok(csr_pem) => self.say(&FromAgent::Renew { csr_pem }).await,
                Err(error) => tracing::error!(%error, "no renewal"),
            },
            Action::Check => self.check(),
            Action::Reboot => self.reboot(),
        }
    }

    fn enrol(&mut self) {
        let Some(token) = self.boot.token.clone() else {
            return self.events.push_back(Event::Refused("there is no token".into()));
        };
        let (version, node, session) = (wire::VERSION, self.config.node, self.boot.session);
        let request = self.keys.request().map(|csr_pem| EnrolRequest { version, node, session, token, csr_pem });
        self.certify(wire::ENROL_PATH, request);
    }

    fn renew(&mut self) {
        let request = self.keys.request().map(|csr_pem| RenewRequest { version: wire::VERSION, csr_pem });
        self.certify(wire::RENEW_PATH, request);
    }

    fn certify<Q: Serialize + Send + Sync + 'static>(&mut self, path: &'static str, request: Result<Q, KeyError>) {
        let config = self.config.clone();
        let prepared = request.and_then(|request| Ok((request, self.keys.tls()?)));
        self.call(async move {
            let (request, tls) = prepared.map_err(|error| CallError::Lost(error.to_string()))?;
            let response: EnrolResponse = call::post(&config, tls, path, &request).await?;
            Ok(Done::Event(Event::Certified(response)))
        });
    }

    fn open_link(&mut self) {
        let (config, tls) = (self.config.clone(), self.keys.tls());
        self.call(async move {
            let tls = tls.map_err(|error| CallError::Refused(error.to_string()))?;
            Ok(Done::Open(Box::new(call::open(&config, tls, wire::LINK_PATH).await?), Kind::Link))
        });
    }

    fn open_pending(&mut self, reason: String) {
        tracing::warn!(reason, "asking the operator for approval: meshd node approve {}", self.config.node);
        let prepared = self.keys.request().and_then(|csr_pem| Ok((csr_pem, self.keys.tls()?)));
        let (config, boot, tree) = (self.config.clone(), self.boot.clone(), self.tree.clone());
        self.call(async move {
            let (csr_pem, tls) = prepared.map_err(|error| CallError::Lost(error.to_string()))?;
            let facts = facts::collect(&tree, Some(&config), Some(&boot));
            let (version, node, session) = (wire::VERSION, config.node, boot.session);
            let hello = PendingHello { version, node, session, csr_pem, facts };
            let text = serde_json::to_string(&hello).map_err(|error| CallError::Lost(error.to_string()))?;
            let mut socket = call::open(&config, tls, wire::PENDING_PATH).await?;
            let sent = timeout(SEND_TIMEOUT, socket.send(Message::Text(text.into()))).await;
            match sent {
                Ok(Ok(())) => Ok(Done::Open(Box::new(socket), Kind::Pending)),
                Ok(Err(error)) => Err(CallError::Lost(error.to_string())),
                Err(_) => Err(CallError::Lost("the hello did not leave in time".into())),
            }
        });
    }

    fn call(&mut self, call: impl Future<Output = Result<Done, CallError>> + Send + 'static) {
        self.socket = None;
        self.call = JoinSet::new();
        self.call.spawn(async {
            call.await.unwrap_or_else(|error| {
                Done::Event(match error {
                    CallError::Refused(_) => Event::Refused(error.to_string()),
                    CallError::StaleCa(_) => Event::StaleCa(error.to_string()),
                    CallError::Lost(_) => Event::Lost(error.to_string()),
                })
            })
        });
    }

    fn check(&mut self) {
        let (tree, config, boot) = (self.tree.clone(), self.config.clone(), self.boot.clone());
        self.work.spawn_blocking(move || {
            let units = units::survey(&tree, &config.vfio, &units::Linux(&tree));
            let context = checks::Context { tree: &tree, config: &config, boot: &boot, units: &units, now: wall() };
            Done::Event(Event::Checked(checks::run(&context)))
        });
    }

    fn reboot(&mut self) {
        tracing::warn!("the central node asks for a reboot");
        let arguments = self.options.reboot.clone();
        self.work.spawn(async move {
            // It only asks init to stop everything; then this agent is stopped too, and nothing more is said.
            let failed = match run_program(&arguments).await {
                Ok(status) if status.success() => pending().await,
                Ok(status) => format!("{arguments:?} ended with {status}"),
                Err(error) => format!("{arguments:?} cannot be run: {error}"),
            };
            Done::Event(Event::RebootFailed(failed))
        });
    }

    async fn say(&mut self, message: &FromAgent) {
        match serde_json::to_string(message) {
            Ok(text) => self.send(Message::Text(text.into())).await,
            Err(error) => tracing::error!(%error, "a message cannot be written"),
        }
    }

    async fn send(&mut self, message: Message) {
        let Some((socket, _)) = &mut self.socket else { return };
        let failed = match timeout(SEND_TIMEOUT, socket.send(message)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("cannot send: {error}"),
            Err(_) => "cannot send in time".to_owned(),
        };
        self.socket = None;
        self.events.push_back(Event::Lost(failed));
    }

    /// Closes what is open as far as the other end listens.
    async fn hang_up(&mut self) {
        if let Some((mut socket, _)) = self.socket.take() {
            let _ = timeout(Duration::from_secs(1), (*socket).close(None)).await;
        }
    }
}

async fn receive(socket: &mut Option<(Box<Socket>, Kind)>) -> Result<Message, String> {
    match socket {
        None => pending().await,
        Some((socket, _)) => match socket.next().await {
            Some(Ok(message)) => Ok(message),
            Some(Err(error)) => Err(format!("the connection broke: {error}")),
            None => Err("the connection ended".to_owned()),
        },
    }
}
