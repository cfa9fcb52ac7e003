//! Passes events to the link state machine ([`super::link_state`]) and executes its effects. One
//! task, one connection; slow work runs in the background and returns an event.
//!
//! | module | content |
//! | --- | --- |
//! | `action_outcomes` | outcomes of ordered actions and the accepted reboot, stored for a restarted agent |
//! | `background_runtime` | threads for VMs |
//! | `calls` | one call to the central node at a time |
//! | `drain` | drain hooks: other schedulers of the node leave and enter service with it |
//! | `options` | paths of the agent, start errors |
//! | `restart` | restarts the machine, through the firmware or with the loaded kernel |
//! | `sections` | the sections of the desired state: VMs, tasks, containers and drain hooks |
//! | `side_effects` | clock, randomness, log, limits, programs |

mod action_outcomes;
mod background_runtime;
mod calls;
mod drain;
mod options;
mod restart;
mod sections;
mod side_effects;

use self::{
    action_outcomes::ActionOutcomes,
    background_runtime::BackgroundRuntime,
    drain::DrainHooks,
    options::{container_host, host_config, import_ticket},
    restart::Restart,
    sections::Sections,
    side_effects::{log, random, source, wall},
};
use super::{
    checks,
    container::Containers,
    facts, files,
    link::boot_log::BootLog,
    link::call::{self, Socket},
    link::keys::{KeyError, Keys},
    link_state::{Effect, Event, LinkStateMachine, Now, STARTING_PATIENCE, Validity},
    networks::{self, firewall::user::CentralServices},
    system::{Tree, uptime},
    task::Tasks,
    vm::VmManager,
};
use futures_util::{SinkExt as _, StreamExt as _};
use meshd_proto::{AgentConfig, BootPart, Facts, FromAgent, FromCentral, Heartbeat, Welcome};
pub use options::{Options, RunError};
use std::{collections::VecDeque, future::pending, time::Duration};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_tungstenite::tungstenite::{Bytes, Message};
use tokio_util::sync::CancellationToken;

const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the central node to read the last messages of a connection and to close it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for the goodbye, which waits behind earlier messages. Tasks end after the goodbye, and an
/// init that stops the agent waits for a few seconds only.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that a hello waits for its facts. The deadline of each source is shorter.
const FACTS_TIMEOUT: Duration = Duration::from_secs(8);

/// A result of work in the background.
enum Completion {
    Event(Event),
    Open(Box<Socket>, ConnectionKind),
    /// The content of the hello of the present link.
    Facts(Box<Facts>),
}

#[derive(Clone, Copy, PartialEq)]
enum ConnectionKind {
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
    socket: Option<(Box<Socket>, ConnectionKind)>,
    /// The facts of the last hello.
    facts: Facts,
    /// The call in progress; [`Effect::Close`] cancels it.
    call: JoinSet<Completion>,
    /// Checks and the reboot; never cancelled.
    work: JoinSet<Completion>,
    events: VecDeque<Event>,
    outcomes: ActionOutcomes,
    sections: Sections,
    _networks: JoinSet<()>,
    /// The central node's clock at the last welcome.
    central_clock: Option<checks::CentralClock>,
    boot_log: BootLog,
    usage: facts::UsageMeter,
}

/// Runs the agent until `shutdown`.
///
/// # Errors
/// Only at the start: a file of the overlay is missing or invalid. Later errors are logged and
/// retried.
pub async fn run(options: Options, shutdown: CancellationToken) -> Result<(), RunError> {
    side_effects::raise_limits();
    let options = import_ticket(options)?;
    let config = files::config(&options.config)?;
    let boot = files::boot(&options.boot_file, &config)?;
    let tree = Tree::new(&options.root);
    let ca_file = tree.path(&config.ca_file);
    let (keys, validity) =
        Keys::open(&options.state_dir, boot.roots_pem.as_deref(), &ca_file, config.node)?;
    let mut machine = LinkStateMachine::new(config.node, boot.token.is_some(), validity);
    machine.set_services_start(STARTING_PATIENCE.saturating_sub(uptime(&tree)));
    let outcomes = ActionOutcomes::open(&options.state_dir);
    machine.restore(outcomes.all());
    if let Some(action) = outcomes.accepted_reboot(&tree) {
        machine.restore_reboot(action, Now { timer: Duration::ZERO, wall: wall() });
    }
    Restart::new(options.reboot.clone(), &options.state_dir, &tree).forget_kernel().await;
    let services = CentralServices::new(&config, &boot);
    let tasks =
        Tasks::open(&options.tasks_dir, &options.state_dir.join("cgroup"), config.node, services);
    side_effects::log_start(&config, &boot);
    let vm_host = host_config(&options, &tree, &config, &boot);
    let background = BackgroundRuntime::new()?;
    let vms = background.enter(|| VmManager::open(vm_host));
    let containers = background.enter(|| {
        let host = container_host(&options);
        let images = vms.volumes_in(host.images.clone());
        Containers::open(host, images, vms.endpoint())
    });
    let networks = networks::start(&tree, services, vms.nics(), vms.nic_addresses());
    let drain = DrainHooks::new(&tree);
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
        sections: Sections { vms, tasks, containers, drain },
        _networks: networks,
        central_clock: None,
        boot_log: BootLog::new(),
        usage: facts::UsageMeter::default(),
    };
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => break,
            event = driver.next(machine.deadline()) => event,
        };
        let Some(event) = event else { continue };
        log(&event, driver.options.token_file.is_some());
        if let Event::Message(FromCentral::Welcome(welcome)) = &event {
            driver.note_welcome(welcome);
        }
        let before = machine.state();
        let effects = machine.handle(driver.now(), random(), event);
        if machine.state() != before {
            tracing::info!(from = before, to = machine.state(), "state");
        }
        // Stored before it is confirmed, and until it has started.
        let accepted = machine.accepted_reboot();
        if accepted.is_some() {
            driver.outcomes.store_reboot(accepted, &driver.tree);
        }
        for effect in effects {
            driver.perform(effect).await;
        }
        driver.outcomes.store_reboot(accepted, &driver.tree);
    }
    driver.say_goodbye().await;
    driver.sections.tasks.end().await;
    driver.boot_log.end().await;
    drop(background);
    Ok(())
}

impl Driver {
    fn now(&self) -> Now {
        Now { timer: self.started.elapsed(), wall: wall() }
    }

    /// Waits for the next event; `None` if a completion causes no event. Cancel-safe.
    async fn next(&mut self, deadline: Option<Duration>) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        let due = deadline.map(|at| self.started + at);
        let completion = tokio::select! {
            () = async { match due { Some(due) => sleep_until(due).await, None => pending().await } } => {
                return Some(Event::Timer);
            }
            message = receive(&mut self.socket) => return self.parse(message),
            message = self.sections.next() => return Some(Event::Report(message)),
            Some(completion) = self.call.join_next() => completion,
            Some(completion) = self.work.join_next() => completion,
            piece = self.boot_log.next() => return Some(Event::Report(FromAgent::Log(piece))),
        };
        match completion {
            Ok(Completion::Event(event)) => Some(event),
            Ok(Completion::Facts(facts)) => {
                self.send_hello(*facts).await;
                None
            }
            Ok(Completion::Open(socket, kind)) => {
                self.socket = Some((socket, kind));
                (kind == ConnectionKind::Link).then_some(Event::Connected)
            }
            Err(error) => {
                Some(Event::ConnectionLost(format!("a task of the agent failed: {error}")))
            }
        }
    }

    fn parse(&mut self, message: Result<Message, String>) -> Option<Event> {
        let kind = self.socket.as_ref().map(|(_, kind)| *kind);
        let text = match message {
            Ok(Message::Text(text)) => text,
            Ok(Message::Close(frame)) => {
                self.socket = None;
                let reason = frame.map(|frame| frame.reason.to_string()).unwrap_or_default();
                return Some(Event::ConnectionLost(format!(
                    "the central node closed the connection: {reason}"
                )));
            }
            Ok(_) => return Some(Event::KeepAlive),
            Err(reason) => {
                self.socket = None;
                return Some(Event::ConnectionLost(reason));
            }
        };
        if kind == Some(ConnectionKind::Pending) {
            return serde_json::from_str(&text).ok().map(Event::Pending);
        }
        Some(call::parse(&text))
    }

    async fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Enrol => self.enrol(),
            Effect::Renew => self.renew(),
            Effect::OpenPending { reason } => self.open_pending(reason),
            Effect::OpenLink => self.open_link(),
            Effect::Deliver(message) => self.deliver(message),
            Effect::ReportSections => {
                self.sections.begin_link();
                self.usage.begin_link(Instant::now().into_std());
            }
            Effect::Close => {
                self.call = JoinSet::new();
                self.close_connection(CLOSE_TIMEOUT).await;
            }
            Effect::ForgetToken => self.set_token(None),
            Effect::StoreCertificate(response) => {
                let stored = self.keys.store(&response, Validity::from_response(&response, wall()));
                self.update_endpoint(stored, "cannot store the certificate");
            }
            Effect::TrustRoots(roots_pem) => {
                let stored = self.keys.trust(&roots_pem);
                self.update_endpoint(stored, "cannot store the new roots");
            }
            Effect::StoreToken(token) => self.set_token(Some(token)),
            Effect::DropCertificate => self.keys.drop_certificate(),
            Effect::Hello => self.collect_facts(),
            Effect::Heartbeat => {
                let heartbeat = Heartbeat {
                    workloads: self.sections.workloads(),
                    usage: self.usage.next_usage(&self.tree, &self.options.vm_dir),
                    ..facts::heartbeat(&self.tree)
                };
                self.send_message(&FromAgent::Heartbeat(heartbeat)).await;
                self.send(Message::Ping(Bytes::new())).await;
            }
            Effect::Send(message) => {
                self.outcomes.store(&message);
                self.send_message(&message).await;
                if let FromAgent::Checks(report) = &message {
                    let (failures, warnings) = meshd_proto::tally(&report.checks);
                    tracing::info!(failures, warnings, "check report sent");
                }
            }
            Effect::RequestRenewal => match self.keys.request() {
                Ok(csr_pem) => self.send_message(&FromAgent::Renew { csr_pem }).await,
                Err(error) => tracing::error!(%error, "cannot renew the certificate"),
            },
            Effect::RunChecks => self.run_checks(),
            Effect::Reboot => self.reboot(),
            Effect::WarmReboot => self.reboot_warm(),
        }
    }

    /// Passes a message to the section or stream that it is for.
    fn deliver(&mut self, message: FromCentral) {
        match message {
            FromCentral::Spec(spec) => self.sections.apply(spec),
            FromCentral::Console(order) => self.sections.vms.console(order),
            FromCentral::Shell(order) => self.sections.tasks.open_shell(order),
            FromCentral::GuestShell(order) => {
                let access = self.sections.vms.guest_access(order.uuid);
                self.sections.tasks.open_guest_shell(order, access);
            }
            FromCentral::ContainerLogs(order) => self.sections.containers.open_log(order),
            FromCentral::ContainerExec(order) => {
                let shell = order.shell.clone();
                let exec = self.sections.containers.prepare_exec(order);
                self.sections.tasks.open_replica_shell(shell, exec);
            }
            FromCentral::TaskInput(order) => self.sections.tasks.connect_input(order),
            FromCentral::OutputStored(stored) => self.sections.tasks.output_stored(stored),
            FromCentral::LogStored(stored) => self.boot_log.stored(stored),
            _ => {}
        }
    }

    /// Logs a storage error. Changed keys are used even if they are not stored.
    fn update_endpoint(&mut self, stored: Result<(), KeyError>, failure: &str) {
        if let Err(error) = stored {
            tracing::error!(%error, cause = source(&error), "{failure}");
        }
        self.set_endpoint();
    }

    /// Passes the keys to VMs and tasks, which open their own connections to the central node.
    fn set_endpoint(&mut self) {
        match self.endpoint() {
            Ok(endpoint) => {
                self.sections.vms.set_endpoint(endpoint.clone());
                self.sections.tasks.set_endpoint(endpoint);
            }
            Err(error) => tracing::error!(%error, "cannot fetch volumes"),
        }
    }

    fn run_checks(&mut self) {
        let tree = self.tree.clone();
        let config = self.config.clone();
        let boot = self.boot.clone();
        let vms = self.options.vm_dir.clone();
        let clock = self.central_clock;
        self.work.spawn_blocking(move || {
            Completion::Event(Event::ChecksDone(checks::report(
                &tree,
                &vms,
                &config,
                &boot,
                clock,
                wall(),
            )))
        });
    }

    /// Stores the central node's time, and starts to send the node's log if the central node stores
    /// logs.
    fn note_welcome(&mut self, welcome: &Welcome) {
        if welcome.logs {
            self.boot_log.begin_link(&self.tree);
        }
        let Some(central) = welcome.now else { return };
        let clock = checks::CentralClock::new(&self.tree, central);
        self.central_clock = Some(clock);
        if let Err(error) = clock.store(&self.options.state_dir) {
            tracing::warn!(%error, cause = source(&error), "cannot store the central node's time for `mesh-agent doctor`");
        }
    }

    fn reboot(&mut self) {
        tracing::warn!("rebooting: ordered by the central node");
        self.work.spawn(self.restart().cold());
    }

    fn reboot_warm(&mut self) {
        tracing::warn!("rebooting without the firmware: ordered by the central node");
        let endpoint = self.endpoint().map_err(|error| error.to_string());
        self.work.spawn(self.restart().warm(endpoint));
    }

    fn restart(&self) -> Restart {
        Restart::new(self.options.reboot.clone(), &self.options.state_dir, &self.tree)
    }

    async fn send_message(&mut self, message: &FromAgent) {
        match serde_json::to_string(message) {
            Ok(text) => self.send(Message::Text(text.into())).await,
            Err(error) => tracing::error!(%error, "cannot serialize a message"),
        }
    }

    async fn send(&mut self, message: Message) {
        let Some((socket, _)) = &mut self.socket else { return };
        let failure = match timeout(SEND_TIMEOUT, socket.send(message)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("cannot send: {error}"),
            Err(_) => "cannot send: timeout".to_owned(),
        };
        self.socket = None;
        self.events.push_back(Event::ConnectionLost(failure));
    }

    /// Announces the end of this agent. Without it, the central node lets the machine wait at its
    /// next boot: another machine may pose as it.
    async fn say_goodbye(&mut self) {
        if matches!(self.socket, Some((_, ConnectionKind::Link))) {
            self.send_message(&FromAgent::Goodbye).await;
        }
        self.close_connection(GOODBYE_TIMEOUT).await;
    }

    async fn close_connection(&mut self, limit: Duration) {
        if let Some((socket, _)) = self.socket.take() {
            let (mut out, mut incoming) = socket.split();
            let closed = timeout(limit, meshd_client::close(&mut out, &mut incoming));
            if closed.await.is_err() {
                tracing::debug!("the central node does not close its connection");
            }
        }
    }
}

async fn receive(socket: &mut Option<(Box<Socket>, ConnectionKind)>) -> Result<Message, String> {
    match socket {
        None => pending().await,
        Some((socket, _)) => match socket.next().await {
            Some(Ok(message)) => Ok(message),
            Some(Err(error)) => Err(format!("the connection broke: {error}")),
            None => Err("the connection ended".to_owned()),
        },
    }
}
