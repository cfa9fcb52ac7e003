//! Supervises one VM: passes events to [`Machine`], executes its actions, reports the state. QEMU outlives a supervisor that is dropped.

use super::{
    argv,
    console::Console,
    exit_status,
    folder::Files,
    host::{self, Places},
    launch::{self, Launched},
    machine::{Action, Event, Machine},
    memory,
    process::{self, Process},
    records::{Order, Stored, report},
    reservations::Reservations,
    session::{QemuEvent, Session, Terms},
};
use crate::system::{self, Tree};
use meshd_proto::vm::{VmFailure, VmFailureKind, VmReport, VmSpec, VmState};
use rustix::process::Signal;
use std::{collections::VecDeque, future::pending, sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

/// How long the sockets of a QEMU that has gone may take to say so.
const DRAIN: Duration = Duration::from_secs(5);
/// How often QEMU's words are kept from growing.
const LOG_LOOK: Duration = Duration::from_secs(5);
/// How long is waited before sockets that broke are connected again.
const REOPEN: Duration = Duration::from_secs(1);

/// Keeps one virtual machine.
pub struct Keeper {
    spec: VmSpec,
    start: u32,
    /// The boot of the node that it is of, and this one.
    boot: (String, String),
    ran: bool,
    files: Files,
    places: Arc<Places>,
    promised: Reservations,
    machine: Machine,
    started: Instant,
    process: Option<Process>,
    session: Option<Session>,
    /// When sockets that broke are connected again.
    reopen: Option<Instant>,
    /// When QEMU's words are looked at next.
    look_at: Instant,
    /// Processes that the kernel had ended for want of memory when this QEMU was run.
    ended_before: u64,
    console: Console,
    typing: Arc<tokio::sync::Mutex<mpsc::Receiver<Vec<u8>>>>,
    ip: Option<std::path::PathBuf>,
    /// Held until QEMU has its units, so that no check takes one for a moment in between.
    groups: Vec<std::fs::File>,
    stored: Option<Stored>,
    report: watch::Sender<VmReport>,
    changed: watch::Sender<u64>,
    release: Option<oneshot::Sender<Result<(), String>>>,
    /// It was taken over, and no QEMU of it runs any more.
    has_remains: bool,
}

impl Keeper {
    /// Of a machine whose folder may or may not be there; what runs of it is taken over by [`Keeper::run`].
    pub fn new(
        stored: Stored,
        files: Files,
        places: Arc<Places>,
        promised: Reservations,
        changed: watch::Sender<u64>,
    ) -> Self {
        let Stored { spec, start, kept, boot, ran } = stored;
        let tree = Tree::new(&places.root);
        let (console, typing) = Console::new(&files);
        let machine = Machine::new(spec.restart, spec.memory.bytes(), kept);
        let first = report(&spec, start, &machine);
        Keeper {
            start,
            boot: (boot, system::kernel_boot_id(&tree)),
            ran,
            files,
            places,
            promised,
            machine,
            started: Instant::now(),
            process: None,
            session: None,
            reopen: None,
            look_at: Instant::now(),
            ended_before: memory::ended_for_want(&tree),
            console,
            typing: Arc::new(tokio::sync::Mutex::new(typing)),
            ip: None,
            groups: Vec::new(),
            stored: None,
            report: watch::Sender::new(first),
            changed,
            release: None,
            has_remains: false,
            spec,
        }
    }

    /// Takes over what an earlier agent left of it.
    pub fn adopt(&mut self) -> Vec<Action> {
        self.process = process::find(&self.files.pid(), self.files.user());
        self.has_remains = self.process.is_none();
        let actions = if self.process.is_none() && self.boot.0 != self.boot.1 {
            self.machine.left_over();
            self.ran = false;
            Vec::new()
        } else {
            self.machine.adopt(Duration::ZERO, self.process.is_some())
        };
        if self.process.is_some() || self.machine.kept().wanted {
            self.promised.insert(&self.spec);
        }
        if let Some(process) = &self.process {
            self.ran = true;
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

    pub fn console(&self) -> Console {
        self.console.clone()
    }

    /// Keeps it until it is released or nobody gives orders any more. `actions` are those of [`Keeper::adopt`].
    pub async fn run(mut self, mut orders: mpsc::Receiver<Order>, actions: Vec<Action>) {
        if self.has_remains {
            // Its QEMU may have ended while no agent ran: nothing of it stays taken.
            launch::end_all(&self.spec, &self.files, &self.places).await;
        }
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
            if self.released().await {
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
                launch::end_all(&self.spec, &self.files, &self.places).await;
                Next::Event(Event::Ended { how: how + self.memory_word(), log: self.files.last_words() })
            }
            told = told(&mut self.session) => match told {
                Some(QemuEvent::Answered) => {
                    self.groups.clear();
                    Next::Event(Event::Answered)
                }
                Some(QemuEvent::CannotGo(detail)) => {
                    Next::Event(Event::CannotGo(VmFailure { kind: VmFailureKind::NotStarted, detail, log: Vec::new() }))
                }
                Some(QemuEvent::Leaving(leaving)) => Next::Event(Event::Leaving(leaving)),
                Some(QemuEvent::Paused { pause, error }) => {
                    Next::Event(exit_status::paused(&self.spec, &pause, error.as_ref()))
                }
                Some(QemuEvent::Resumed) => Next::Event(Event::Resumed),
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
            () = until(self.process.as_ref().map(|_| self.look_at)) => {
                self.look_at = Instant::now() + LOG_LOOK;
                self.files.trim_log();
                Next::Nothing
            }
            () = until(deadline) => Next::Event(Event::Tick),
        }
    }

    /// Said of an end that the kernel may have brought.
    fn memory_word(&self) -> &'static str {
        if memory::ended_for_want(&Tree::new(&self.places.root)) > self.ended_before {
            "; the kernel ended processes for want of memory meanwhile"
        } else {
            ""
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
        self.groups.clear();
        let mut session = self.session.take()?;
        session.is_gone();
        let mut last = None;
        let drain = async {
            while let Some(told) = session.next().await {
                if let QemuEvent::Leaving(leaving) = told {
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
                    self.ended_before = memory::ended_for_want(&Tree::new(&self.places.root));
                    match launch::launch(&self.spec, &self.files, &self.places, &self.promised).await {
                        Ok(Launched { process, ip, groups }) => {
                            (self.process, self.ip, self.ran, self.groups) = (Some(process), ip, true, groups);
                            self.store();
                            self.open_session();
                        }
                        Err(failure) => events.push_back(Event::LaunchFailed(failure)),
                    }
                }
                (Action::PowerDown | Action::Resume, _) => {
                    if let Some(session) = &self.session {
                        if action == Action::Resume { session.resume() } else { session.power_down() }
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
            nic.bridge.as_ref().map(|bridge| (argv::tap(&self.spec, index), bridge.to_string(), nic.peers))
        });
        self.session = Some(Session::open(Terms {
            qmp: self.files.qmp(),
            serial: self.files.serial_in(),
            console: self.console.clone(),
            typing: self.typing.clone(),
            ports: ports.collect(),
            ip: self.ip.clone(),
        }));
    }

    /// Writes what outlives this agent, before anything is done by it.
    fn store(&mut self) {
        let (spec, kept, boot) = (self.spec.clone(), self.machine.kept().clone(), self.boot.1.clone());
        let stored = Stored { spec, start: self.start, kept, boot, ran: self.ran };
        // One that is to be released makes no folder any more, and is not brought back by an agent that comes in between.
        let is_going = self.release.is_some() && !self.files.kept().exists();
        if self.stored.as_ref() == Some(&stored) || is_going {
            return;
        }
        match stored.write(&self.files) {
            Ok(()) => self.stored = Some(stored),
            Err(error) => tracing::error!(vm = %self.spec.name, %error, "a virtual machine would not be taken over"),
        }
    }

    fn tell(&self) {
        let now = report(&self.spec, self.start, &self.machine);
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
    async fn released(&mut self) -> bool {
        if self.release.is_none() || self.machine.state().is_live() {
            return false;
        }
        let removed = if self.process.is_some() {
            Err("QEMU was killed and does not end; look at the node's kernel log".to_owned())
        } else {
            launch::end_all(&self.spec, &self.files, &self.places).await;
            // What it never had it need not give back.
            match if self.ran { launch::given_back(&self.places, &self.spec).await } else { Ok(()) } {
                Ok(()) => self.files.release().await,
                unclean => unclean,
            }
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

async fn ended(process: &Option<Process>) -> String {
    match process {
        Some(process) => process.ended().await,
        None => pending().await,
    }
}

async fn told(session: &mut Option<Session>) -> Option<QemuEvent> {
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
