//! Passes events to the link state machine ([`super::link_state`]) and executes its actions. One task, one connection; slow work runs beside
//! it and returns as an event.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `background_thread` | a second thread for VMs and tasks |
//! | `calls` | one call to the central node at a time |
//! | `options` | paths of the agent, and why it cannot start |
//! | `side_effects` | clock, randomness, log, files, reboot |

mod background_thread;
mod calls;
mod side_effects;
mod options;

use self::{
    background_thread::BackgroundThread,
    options::places,
    side_effects::{Outcomes, log, random, run_program, source, wall, with_ticket},
};
use super::{
    checks, facts, files,
    link::boot_log::BootLog,
    link::call::{self, Endpoint, LinkRead, Socket},
    link::keys::{KeyError, Keys},
    link_state::{Action, Event, Life, Machine, Now},
    nat,
    system::Tree,
    task::Tasks,
    vm::VmManager,
};
use futures_util::{SinkExt as _, StreamExt as _};
use meshd_proto::{AgentConfig, BootPart, Facts, FromAgent, FromCentral, Heartbeat, PendingReply};
pub use options::{Options, RunError};
use std::{collections::VecDeque, future::pending, time::Duration};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_tungstenite::tungstenite::{Bytes, Message};
use tokio_util::sync::CancellationToken;

/// Timeout of sending a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a hello waits for its facts. The deadline of each source is shorter.
const FACTS_PATIENCE: Duration = Duration::from_secs(8);

/// A result of work in the background.
enum Done {
    /// An event for the machine.
    Event(Event),
    /// A connection, and which kind.
    Open(Box<Socket>, Kind),
    /// The content of the hello of the present link.
    Facts(Box<Facts>),
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
    /// The facts of the last hello.
    facts: Facts,
    /// The call in progress; [`Action::Close`] cancels it.
    call: JoinSet<Done>,
    /// Checks and the reboot; never cancelled.
    work: JoinSet<Done>,
    events: VecDeque<Event>,
    outcomes: Outcomes,
    vms: VmManager,
    _nat: nat::NatService,
    /// The central node's clock at its last report.
    clock: Option<checks::Reference>,
    tasks: Tasks,
    boot_log: BootLog,
}

/// Runs the agent until `shutdown`.
///
/// # Errors
/// Only at the start: files of the overlay are missing or damaged. Later errors are logged and retried.
pub async fn run(options: Options, shutdown: CancellationToken) -> Result<(), RunError> {
    side_effects::raise_limits();
    let options = with_ticket(options)?;
    let config = files::config(&options.config)?;
    let boot = files::boot(&options.boot_file, &config)?;
    let tree = Tree::new(&options.root);
    let ca_file = tree.path(&config.ca_file);
    let (keys, life) = Keys::open(&options.state_dir, boot.roots_pem.as_deref(), &ca_file, config.node)?;
    let mut machine = Machine::new(config.node, boot.token.is_some(), life);
    let outcomes = Outcomes::open(&options.state_dir);
    machine.remember(outcomes.all());
    let tasks = Tasks::open(&options.jobs_dir, &options.state_dir.join("cgroup"), config.node);
    side_effects::log_start(&config, &boot);
    let places = places(&options, &tree, &config, &boot);
    let background_thread = BackgroundThread::new()?;
    let vms = background_thread.within(|| VmManager::open(places));
    let nat = nat::NatService::start(&tree, vms.nics(), vms.nic_addresses());
    let mut driver = Driver {
        options,
        tree,
        config,
        boot,
        keys,
        started: Instant::now(),
        socket: None,
        facts: Facts::default(),
        call: JoinSet::new(),
        work: JoinSet::new(),
        events: VecDeque::new(),
        outcomes,
        vms,
        _nat: nat,
        clock: None,
        tasks,
        boot_log: BootLog::new(),
    };
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => break,
            event = driver.next(machine.deadline()) => event,
        };
        let Some(event) = event else { continue };
        log(&event);
        driver.set_clock(&event);
        driver.start_log(&event);
        let before = machine.state();
        let actions = machine.on(driver.now(), random(), event);
        if machine.state() != before {
            tracing::info!(from = before, to = machine.state(), "state");
        }
        for action in actions {
            driver.perform(action).await;
        }
    }
    driver.close_connection().await;
    driver.tasks.end().await;
    driver.boot_log.end().await;
    drop(background_thread);
    Ok(())
}

impl Driver {
    fn now(&self) -> Now {
        Now { timer: self.started.elapsed(), wall: wall() }
    }

    /// Waits for the next event; `None` if a result is no event. Cancel-safe.
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
            news = self.vms.next_update() => return Some(Event::Vm(news)),
            Some(done) = self.call.join_next() => done,
            Some(done) = self.work.join_next() => done,
            piece = self.boot_log.next() => return Some(Event::Log(piece)),
            news = self.tasks.next() => return Some(Event::Task(news)),
        };
        match done {
            Ok(Done::Event(event)) => Some(event),
            Ok(Done::Facts(facts)) => {
                self.hello(*facts).await;
                None
            }
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
            LinkRead::Message(message) => Event::Heard(message),
            LinkRead::UnknownAction(id) => Event::UnknownAction(id),
            LinkRead::Unreadable => Event::Alive,
        })
    }

    async fn perform(&mut self, action: Action) {
        match action {
            Action::Enrol => self.enrol(),
            Action::Renew => self.renew(),
            Action::OpenPending { reason } => self.open_pending(reason),
            Action::OpenLink => self.open_link(),
            Action::Vm(order) => self.vms.order(order),
            Action::Console(order) => self.vms.console(order),
            Action::ReportVms => {
                let all = FromAgent::Vm(self.vms.full_report());
                self.send_message(&all).await;
            }
            Action::Task(order) => self.tasks.order(order),
            Action::LogStored(stored) => self.boot_log.stored(stored),
            Action::OutputStored(kept) => self.tasks.output_stored(kept),
            Action::ReportTasks => self.tasks.welcome(),
            Action::Close => {
                self.call = JoinSet::new();
                self.close_connection().await;
            }
            Action::ForgetToken => self.forget_token(),
            Action::Keep(response) => {
                let life = Life::of(&response, wall());
                let kept = self.keys.keep(&response, life);
                self.kept(kept, "the certificate is not kept");
            }
            Action::Trust(roots_pem) => {
                let kept = self.keys.trust(&roots_pem);
                self.kept(kept, "the new roots are not kept");
            }
            Action::KeepToken(token) => self.keep_token(token),
            Action::DropCertificate => self.keys.drop_certificate(),
            Action::Hello => self.greet(),
            Action::Heartbeat => {
                let workloads = self.vms.workloads().saturating_add(self.tasks.count());
                let heartbeat = Heartbeat { workloads, ..facts::heartbeat(&self.tree) };
                self.send_message(&FromAgent::Heartbeat(heartbeat)).await;
                self.send(Message::Ping(Bytes::new())).await;
            }
            Action::Say(message) => {
                self.outcomes.store(&message);
                self.send_message(&message).await;
                if let FromAgent::Checks(report) = &message {
                    let (failures, warnings) = meshd_proto::tally(&report.checks);
                    tracing::info!(failures, warnings, "check report sent");
                }
            }
            Action::AskRenewal => match self.keys.request() {
                Ok(csr_pem) => self.send_message(&FromAgent::Renew { csr_pem }).await,
                Err(error) => tracing::error!(%error, "no renewal"),
            },
            Action::Check => self.check(),
            Action::Reboot => self.reboot(),
        }
    }

    /// Gives changed keys to everything that calls the central node.
    fn kept(&self, kept: Result<(), KeyError>, otherwise: &str) {
        if let Err(error) = kept {
            tracing::error!(%error, cause = source(&error), "{otherwise}");
        }
        self.set_endpoint();
    }

    /// Gives the identity to the parts that call the central node themselves.
    fn set_endpoint(&self) {
        match self.keys.tls() {
            Ok(tls) => self.vms.set_endpoint(Endpoint { config: self.config.clone(), tls }),
            Err(error) => tracing::error!(%error, "volumes cannot be fetched"),
        }
    }

    fn check(&mut self) {
        let (tree, config, boot, clock) = (self.tree.clone(), self.config.clone(), self.boot.clone(), self.clock);
        let vms = self.options.vm_dir.clone();
        self.work.spawn_blocking(move || {
            Done::Event(Event::Checked(checks::report(&tree, &vms, &config, &boot, clock, wall())))
        });
    }

    /// Sends the node's log to a central node that stores it.
    fn start_log(&mut self, event: &Event) {
        if matches!(event, Event::Heard(FromCentral::Welcome(welcome)) if welcome.logs) {
            self.boot_log.welcome(&self.tree);
        }
    }

    /// Stores the time that the central node sends at the start of each link.
    fn set_clock(&mut self, event: &Event) {
        let Event::Heard(FromCentral::Welcome(meshd_proto::Welcome { now: Some(central), .. })) = event else {
            return;
        };
        let clock = checks::Reference::new(&self.tree, *central);
        self.clock = Some(clock);
        if let Err(error) = clock.keep(&self.options.state_dir) {
            tracing::warn!(%error, cause = source(&error), "the doctor will not know the central node's time");
        }
    }

    fn reboot(&mut self) {
        tracing::warn!("the central node asks for a reboot");
        let arguments = self.options.reboot.clone();
        self.work.spawn(async move {
            // The program only asks init to stop everything, including this agent, which then reports nothing more.
            let failed = match run_program(&arguments).await {
                Ok(status) if status.success() => pending().await,
                Ok(status) => format!("{arguments:?} ended with {status}"),
                Err(error) => format!("{arguments:?} cannot be run: {error}"),
            };
            Done::Event(Event::RebootFailed(failed))
        });
    }

    async fn send_message(&mut self, message: &FromAgent) {
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

    /// Closes the connection, if the other end still reads.
    async fn close_connection(&mut self) {
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
