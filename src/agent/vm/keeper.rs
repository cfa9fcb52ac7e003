//! Keeps one virtual machine: gives [`Machine`] what happens, does what it says, and tells where it stands. Dropped, it lets go
//! of QEMU, which runs on; the next keeper of the same folder takes it over.

use super::{
    argv,
    console::Console,
    folder::Files,
    host::{self, Places},
    launch::{self, Launched},
    machine::{Action, Event, Kept, Machine},
    process::{self, Process},
    promised::Promised,
    session::{Session, Terms, Told},
};
use crate::{
    agent::files,
    wire::vm::{VmFailure, VmFailureKind, VmReport, VmSpec, VmState},
};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, future::pending, io, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until, timeout},
};

/// How long the sockets of a QEMU that has gone may take to say so.
const DRAIN: Duration = Duration::from_secs(5);
/// How long is waited before sockets that broke are connected again.
const REOPEN: Duration = Duration::from_secs(1);

/// What is ordered of a keeper.
#[derive(Debug)]
pub enum Order {
    /// Run it, by this number.
    Start(u32),
    /// The node could not run it by this number.
    Refuse(u32, VmFailure),
    /// Stop it; the guest has so long.
    Stop(Duration),
    /// Stop it and run it again, by this number.
    Restart(Duration, u32),
    /// End it at once, and remove everything.
    Release(oneshot::Sender<Result<(), String>>),
}

/// What stands in [`Files::kept`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// What it shall be.
    pub spec: VmSpec,
    /// The number of the order by which it was started last.
    #[serde(default)]
    pub start: u32,
    /// What outlives the agent.
    #[serde(default)]
    pub kept: Kept,
}

/// Keeps one virtual machine.
pub struct Keeper {
    spec: VmSpec,
    start: u32,
    files: Files,
    places: Arc<Places>,
    promised: Promised,
    machine: Machine,
    started: Instant,
    process: Option<Process>,
    session: Option<Session>,
    /// When sockets that broke are connected again.
    reopen: Option<Instant>,
    console: Console,
    typing: Arc<tokio::sync::Mutex<mpsc::Receiver<Vec<u8>>>>,
    ip: Option<std::path::PathBuf>,
    stored: Option<Stored>,
    report: watch::Sender<VmReport>,
    changed: watch::Sender<u64>,
    release: Option<oneshot::Sender<Result<(), String>>>,
}

impl Keeper {
    /// Of a machine whose folder may or may not be there; what runs of it is taken over by [`Keeper::run`].
    pub fn new(
        stored: Stored,
        files: Files,
        places: Arc<Places>,
        promised: Promised,
        changed: watch::Sender<u64>,
    ) -> Self {
        let Stored { spec, start, kept } = stored;
        let (console, typing) = Console::new(&files);
        let machine = Machine::new(spec.restart, spec.memory.bytes(), kept);
        let first = report(&spec, &machine);
        Keeper {
            start,
            files,
            places,
            promised,
            machine,
            started: Instant::now(),
            process: None,
            session: None,
            reopen: None,
            console,
            typing: Arc::new(tokio::sync::Mutex::new(typing)),
            ip: None,
            stored: None,
            report: watch::Sender::new(first),
            changed,
            release: None,
            spec,
        }
    }

    /// Takes over what an earlier agent left of it.
    pub fn adopt(&mut self) -> Vec<Action> {
        self.process = process::find(&self.files.pid());
        let actions = self.machine.adopt(Duration::ZERO, self.process.is_some());
        if self.process.is_some() || self.machine.kept().wanted {
            self.promised.insert(&self.spec);
        }
        if let Some(process) = &self.process {
            tracing::info!(vm = %self.spec.name, pid = process.id(), "a running virtual machine is taken over");
            self.ip = host::programs(&self.places).ip;
            self.open_session();
        }
        self.tell();
        actions
    }

    /// Where it stands, now and from now on.
    pub fn reports(&self) -> watch::Receiver<VmReport> {
        self.report.subscribe()
    }

    /// Its console.
    pub fn console(&self) -> Console {
        self.console.clone()
    }

    /// Keeps it until it is released or nobody gives orders any more. `actions` are those of [`Keeper::adopt`].
    pub async fn run(mut self, mut orders: mpsc::Receiver<Order>, actions: Vec<Action>) {
        let mut events = VecDeque::new();
        self.perform(actions, &mut events).await;
        loop {
            let event = match events.pop_front() {
                Some(event) => event,
                None => match self.next(&mut orders).await {
                    Next::Event(event) => event,
                    Next::Nothing => continue,
                    Next::Gone => return,
                },
            };
            let before = self.machine.state();
            let actions = self.machine.on(self.started.elapsed(), event);
            self.store();
            self.perform(actions, &mut events).await;
            let after = self.machine.state();
            if before != after {
                tracing::info!(vm = %self.spec.name, from = before.as_str(), to = after.as_str(), "virtual machine");
            }
            if !after.is_live() && after != VmState::Waiting && self.process.is_none() {
                self.promised.remove(self.spec.uuid);
            }
            self.tell();
            if self.released() {
                return;
            }
        }
    }

    async fn next(&mut self, orders: &mut mpsc::Receiver<Order>) -> Next {
        let deadline = self.machine.deadline().map(|deadline| self.started + deadline);
        tokio::select! {
            biased;
            how = ended(&self.process) => {
                let leaving = self.gone().await;
                if let Some(leaving) = leaving {
                    // What QEMU said comes before its end.
                    self.machine.on(self.started.elapsed(), leaving);
                }
                Next::Event(Event::Ended { how, log: self.files.last_words() })
            }
            told = told(&mut self.session) => match told {
                Some(Told::Answered) => Next::Event(Event::Answered),
                Some(Told::CannotGo(detail)) => {
                    Next::Event(Event::CannotGo(VmFailure { kind: VmFailureKind::NotStarted, detail, log: Vec::new() }))
                }
                Some(Told::Leaving(leaving)) => Next::Event(Event::Leaving(leaving)),
                None => {
                    self.session = None;
                    self.reopen = Some(Instant::now() + REOPEN);
                    Next::Nothing
                }
            },
            order = orders.recv() => match order {
                None => Next::Gone,
                Some(order) => Next::Event(self.ordered(order)),
            },
            () = until(self.reopen) => {
                self.reopen = None;
                self.open_session();
                Next::Nothing
            }
            () = until(deadline) => Next::Event(Event::Tick),
        }
    }

    fn ordered(&mut self, order: Order) -> Event {
        match order {
            Order::Start(start) => {
                self.start = start;
                Event::Start
            }
            Order::Refuse(start, failure) => {
                self.start = start;
                Event::Refused(failure)
            }
            Order::Stop(grace) => Event::Stop { grace },
            Order::Restart(grace, start) => {
                self.start = start;
                Event::Restart { grace }
            }
            Order::Release(done) => {
                self.release = Some(done);
                Event::Discard
            }
        }
    }

    /// The process has gone: takes what its sockets still hold.
    async fn gone(&mut self) -> Option<Event> {
        (self.process, self.reopen) = (None, None);
        let mut session = self.session.take()?;
        session.is_gone();
        let mut last = None;
        let drain = async {
            while let Some(told) = session.next().await {
                if let Told::Leaving(leaving) = told {
                    last = Some(Event::Leaving(leaving));
                }
            }
        };
        // Nothing of it runs any more, so its sockets end; if not, somebody else holds them.
        let _ = timeout(DRAIN, drain).await;
        last
    }

    async fn perform(&mut self, actions: Vec<Action>, events: &mut VecDeque<Event>) {
        for action in actions {
            match (action, &self.process) {
                (Action::Launch, Some(process)) => {
                    let detail = format!("an earlier QEMU of it, process {}, has not ended", process.id());
                    let failure = VmFailure { kind: VmFailureKind::Prepare, detail, log: Vec::new() };
                    events.push_back(Event::LaunchFailed(failure));
                }
                (Action::Launch, None) => {
                    self.tell();
                    match launch::launch(&self.spec, &self.files, &self.places, &self.promised).await {
                        Ok(Launched { process, ip }) => {
                            (self.process, self.ip) = (Some(process), ip);
                            self.open_session();
                        }
                        Err(failure) => events.push_back(Event::LaunchFailed(failure)),
                    }
                }
                (Action::PowerDown, _) => {
                    if let Some(session) = &self.session {
                        session.power_down();
                    }
                }
                (Action::Terminate, Some(process)) => process.signal(Signal::TERM),
                (Action::Kill, Some(process)) => process.signal(Signal::KILL),
                (Action::Terminate | Action::Kill, None) => {
                    events.push_back(Event::Ended { how: "had gone".to_owned(), log: Vec::new() });
                }
            }
        }
    }

    fn open_session(&mut self) {
        let ports = self.spec.nics.iter().enumerate().filter_map(|(index, nic)| {
            nic.bridge.as_ref().map(|bridge| (argv::tap(&self.spec, index), bridge.to_string()))
        });
        self.session = Some(Session::open(Terms {
            qmp: self.files.qmp(),
            serial: self.files.serial(),
            console: self.console.clone(),
            typing: self.typing.clone(),
            ports: ports.collect(),
            ip: self.ip.clone(),
        }));
    }

    /// Writes what outlives this agent, before anything is done by it.
    fn store(&mut self) {
        let stored = Stored { spec: self.spec.clone(), start: self.start, kept: self.machine.kept().clone() };
        if self.stored.as_ref() == Some(&stored) || self.release.is_some() {
            return;
        }
        match write(&self.files, &stored) {
            Ok(()) => self.stored = Some(stored),
            Err(error) => tracing::error!(vm = %self.spec.name, %error, "a virtual machine would not be taken over"),
        }
    }

    fn tell(&self) {
        let now = report(&self.spec, &self.machine);
        let is_new = self.report.send_if_modified(|last| {
            let is_new = *last != now;
            *last = now;
            is_new
        });
        if is_new {
            self.changed.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// True when everything of it is gone.
    fn released(&mut self) -> bool {
        if self.release.is_none() || self.machine.state().is_live() {
            return false;
        }
        let removed = if self.process.is_some() {
            Err("QEMU was killed and does not end; look at the node's kernel log".to_owned())
        } else {
            self.files.remove().map_err(|error| format!("{} cannot be removed: {error}", self.files.folder().display()))
        };
        let is_gone = removed.is_ok();
        if is_gone {
            self.promised.remove(self.spec.uuid);
        }
        if let Some(done) = self.release.take() {
            // Who asked may have stopped waiting.
            let _ = done.send(removed);
        }
        is_gone
    }
}

enum Next {
    Event(Event),
    Nothing,
    Gone,
}

fn report(spec: &VmSpec, machine: &Machine) -> VmReport {
    let Kept { restarts, failure, .. } = machine.kept().clone();
    VmReport { uuid: spec.uuid, name: spec.name.clone(), state: machine.state(), failure, restarts, fetching: None }
}

/// Writes what outlives the agent; makes the folder.
pub fn write(files: &Files, stored: &Stored) -> io::Result<()> {
    files.make()?;
    let text = serde_json::to_string(stored).map_err(io::Error::other)?;
    files::replace(&files.kept(), &text).map_err(io::Error::other)
}

async fn ended(process: &Option<Process>) -> String {
    match process {
        Some(process) => process.ended().await,
        None => pending().await,
    }
}

async fn told(session: &mut Option<Session>) -> Option<Told> {
    match session {
        Some(session) => session.next().await,
        None => pending().await,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}
