//! Group commit: changes are applied to the model at once, and written by one task for all writers.
//! A change is acknowledged when it is on the disk, and undone when it cannot be written.

use crate::{
    Model, change_log::ChangeLog, journal::Batch, records::StagedRecords, retention::NewRecords,
};
use meshd_model::fleet::{Audit, Event, EventSeq};
use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant},
};
use tokio::{
    sync::{broadcast, oneshot},
    task::spawn_blocking,
};

/// Minimum time between the starts of two flushes. A flush costs the same for one writer as for a
/// hundred, so under load writers are gathered. A single writer does not wait.
const MIN_FLUSH_INTERVAL: Duration = Duration::from_millis(4);

/// Model and log, shared with the task that writes.
pub(super) struct Shared {
    pub(super) log: Box<dyn ChangeLog>,
    pub(super) model: RwLock<Model>,
    pub(super) subscribers: broadcast::Sender<(EventSeq, Event)>,
    queue: Mutex<Queue>,
}

/// Changes that are applied and not written yet.
#[derive(Default)]
struct Queue {
    changes: Vec<UnwrittenChange>,
    /// A task writes at present.
    is_writing: bool,
    /// That task has taken changes that are not on the disk.
    is_flushing: bool,
    /// Writing has panicked: the log may differ from the model, so no change is taken any more.
    is_broken: bool,
    /// Start of the last flush.
    last_flush: Option<Instant>,
    /// Notified when nothing is left to write.
    idle: Vec<oneshot::Sender<()>>,
}

/// A change that is in the model and not on the disk.
pub(super) struct UnwrittenChange {
    pub(super) batch: Batch,
    /// Restores the records before the change.
    pub(super) undo: StagedRecords,
    pub(super) events: NewRecords<Event>,
    pub(super) audit: NewRecords<Audit>,
    pub(super) written: oneshot::Sender<io::Result<()>>,
}

impl UnwrittenChange {
    /// A change of nothing: its outcome is that of the changes before it.
    fn empty(written: oneshot::Sender<io::Result<()>>) -> Self {
        UnwrittenChange {
            batch: Batch::default(),
            undo: StagedRecords::default(),
            events: NewRecords::none(),
            audit: NewRecords::none(),
            written,
        }
    }
}

/// Resolves when a change is on the disk, or undone.
pub(super) type Acknowledgement = oneshot::Receiver<io::Result<()>>;

/// A writer, and the outcome of its change.
type Outcome = (oneshot::Sender<io::Result<()>>, io::Result<()>);

impl Shared {
    pub(super) fn new(
        log: Box<dyn ChangeLog>,
        model: Model,
        subscribers: broadcast::Sender<(EventSeq, Event)>,
    ) -> Self {
        Shared { log, model: RwLock::new(model), subscribers, queue: Mutex::default() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that writing has not panicked.
    ///
    /// # Errors
    /// It has: the log may differ from the model until a restart.
    pub(super) fn check_writer(&self) -> io::Result<()> {
        if self.queue().is_broken {
            return Err(io::Error::other("writing has panicked; restart meshd"));
        }
        Ok(())
    }

    /// Queues a change. The caller holds the lock of the model, so the order is that of the model.
    pub(super) fn enqueue(self: &Arc<Self>, change: UnwrittenChange) {
        let mut queue = self.queue();
        if queue.is_broken {
            // Writing panicked after the check. The writer receives an error, because the sender is
            // gone.
            return;
        }
        queue.changes.push(change);
        if !queue.is_writing {
            queue.is_writing = true;
            let shared = Arc::clone(self);
            spawn_blocking(move || shared.write_all());
        }
    }

    /// Returns the acknowledgement of all changes that are applied and not written; `None` if there
    /// are none. The caller holds the lock of the model.
    pub(super) fn await_unwritten(self: &Arc<Self>) -> Option<Acknowledgement> {
        let is_written = {
            let queue = self.queue();
            queue.changes.is_empty() && !queue.is_flushing
        };
        if is_written {
            return None;
        }
        let (written, acknowledgement) = oneshot::channel();
        self.enqueue(UnwrittenChange::empty(written));
        Some(acknowledgement)
    }

    /// Writes until the queue is empty.
    fn write_all(self: Arc<Self>) {
        loop {
            let mut outcomes = self.write(self.take_changes());
            if self.log.needs_compaction() {
                notify(std::mem::take(&mut outcomes));
                self.compact();
            }
            if self.is_done() {
                // A writer may drop and open the store as soon as it is notified.
                drop(self);
                return notify(outcomes);
            }
            notify(outcomes);
        }
    }

    fn compact(&self) {
        let _guard = PanicGuard(self);
        if let Err(error) = self.log.compact() {
            tracing::warn!(%error, "cannot compact the store, which grows meanwhile; check the disk (full?)");
        }
    }

    /// Takes all queued changes. Under load, waits until some have gathered.
    #[expect(
        clippy::disallowed_methods,
        reason = "the pause is a rate limit of flushes, and ends at a known time"
    )]
    fn take_changes(&self) -> Vec<UnwrittenChange> {
        let pause = {
            let queue = self.queue();
            let next = queue
                .last_flush
                .filter(|_| queue.changes.len() > 1)
                .map(|last| last + MIN_FLUSH_INTERVAL);
            next.map(|next| next.saturating_duration_since(Instant::now()))
        };
        pause.into_iter().for_each(std::thread::sleep);
        let mut queue = self.queue();
        queue.last_flush = Some(Instant::now());
        queue.is_flushing = true;
        std::mem::take(&mut queue.changes)
    }

    /// Returns true, and ends the writing, if the queue is empty.
    fn is_done(&self) -> bool {
        let mut queue = self.queue();
        if !queue.changes.is_empty() {
            return false;
        }
        queue.is_writing = false;
        for idle in queue.idle.drain(..) {
            // The receiver may be gone.
            let _ = idle.send(());
        }
        true
    }

    fn write(&self, mut changes: Vec<UnwrittenChange>) -> Vec<Outcome> {
        let _guard = PanicGuard(self);
        let batches = changes.iter_mut().map(|change| std::mem::take(&mut change.batch));
        let batches: Vec<Batch> = batches.filter(|batch| !batch.is_empty()).collect();
        let written = if batches.is_empty() { Ok(()) } else { self.log.append(batches).map(drop) };
        match written {
            Ok(()) => {
                self.queue().is_flushing = false;
                changes.into_iter().map(|change| self.acknowledge(change)).collect()
            }
            Err(error) => self.undo(changes, &error),
        }
    }

    /// Marks the audit lines of a change as stored, and sends its events to subscribers.
    fn acknowledge(&self, change: UnwrittenChange) -> Outcome {
        change.audit.all.iter().for_each(|(_, line)| line.by.audited.set());
        for (seq, event) in change.events.all {
            // An error means that there are no subscribers.
            let _ = self.subscribers.send((EventSeq(seq), event));
        }
        (change.written, Ok(()))
    }

    /// Undoes changes that could not be written, and all that were applied after them.
    fn undo(&self, mut changes: Vec<UnwrittenChange>, error: &io::Error) -> Vec<Outcome> {
        let mut model = self.model.write().unwrap_or_else(PoisonError::into_inner);
        {
            let mut queue = self.queue();
            changes.append(&mut queue.changes);
            queue.is_flushing = false;
        }
        let mut outcomes = Vec::with_capacity(changes.len());
        for UnwrittenChange { undo, events, audit, written, .. } in changes.into_iter().rev() {
            model.apply(undo);
            model.event_log.restore(events.evicted);
            model.audit_log.restore(audit.evicted);
            outcomes.push((written, Err(io::Error::new(error.kind(), error.to_string()))));
        }
        outcomes
    }

    /// Resolves when nothing is left to write.
    pub(super) async fn idle(&self) {
        let idle = {
            let mut queue = self.queue();
            if !queue.is_writing || queue.is_broken {
                return;
            }
            let (sender, idle) = oneshot::channel();
            queue.idle.push(sender);
            idle
        };
        // The sender is dropped only by a panic of the writing task.
        let _ = idle.await;
    }
}

/// Refuses all later changes if the thread panics.
struct PanicGuard<'a>(&'a Shared);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut queue = self.0.queue();
            queue.is_broken = true;
            queue.changes.clear();
            queue.idle.clear();
        }
    }
}

fn notify(outcomes: Vec<Outcome>) {
    for (writer, outcome) in outcomes {
        // The writer may have given up.
        let _ = writer.send(outcome);
    }
}

/// Runs work that blocks.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Store, StoreError,
        change_log::{LogSnapshot, LoggedChange, NumberedRecords, Position, Records},
        journal::Log,
    };
    use meshd_model::fleet::{
        Actor, AuditContext, BootSession, EventKind, Fingerprint, Lease, Node, PhaseChange,
        Principal, Stage, Verb,
    };
    use meshd_types::{Basis, BootSessionId, CorrelationId, MacAddr, Timestamp};
    use std::sync::mpsc;

    /// A log without a disk. Each write waits for its outcome.
    struct Scripted(Mutex<mpsc::Receiver<io::Result<()>>>);

    impl ChangeLog for Scripted {
        fn append(&self, _: Vec<Batch>) -> io::Result<Position> {
            self.0.lock().unwrap().recv().unwrap().map(|()| Position(1))
        }

        fn load(&self) -> Records {
            Records::new()
        }

        fn snapshot(&self) -> io::Result<LogSnapshot> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn changes_after(&self, _: Position) -> io::Result<Option<Vec<LoggedChange>>> {
            Ok(None)
        }

        fn next_number(&self, _: Log) -> u64 {
            0
        }

        fn newest(&self, _: Log, _: u64, _: u64) -> NumberedRecords<'_> {
            Box::new(std::iter::empty())
        }

        fn oldest(&self, _: Log, _: u64) -> NumberedRecords<'_> {
            Box::new(std::iter::empty())
        }

        fn forget(&self, _: Log, _: &mut dyn Iterator<Item = u64>) {}

        fn check(&self) -> io::Result<()> {
            Ok(())
        }

        fn needs_compaction(&self) -> bool {
            false
        }

        fn compact(&self) -> io::Result<()> {
            Ok(())
        }

        fn close(&self) -> io::Result<()> {
            Ok(())
        }
    }

    const AT: Timestamp = Timestamp::EPOCH;

    fn node(number: u8) -> Node {
        let mac = MacAddr([2, 0, 0, 0, 0, number]);
        Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, AT)
    }

    fn lease(number: u8) -> Lease {
        Lease {
            mac: node(number).mac,
            address: [10, 0, 0, number].into(),
            expires_at: AT,
            vm: None,
        }
    }

    /// All records of the kinds that these tests change.
    fn content(store: &Store) -> (Vec<Node>, Vec<Lease>, Vec<BootSessionId>) {
        store.read(|model| {
            let leases = model.leases().cloned().collect();
            (model.nodes().cloned().collect(), leases, model.session_ids().collect())
        })
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn change_that_cannot_be_written_is_undone_with_those_after_it() {
        let (outcomes, script) = mpsc::channel();
        let store = Arc::new(Store::from_log(Box::new(Scripted(Mutex::new(script)))).unwrap());
        outcomes.send(Ok(())).unwrap();
        let acknowledged = store.commit(|tx| {
            tx.put_node(node(1));
            tx.put_lease(lease(1));
            Ok::<_, StoreError>(())
        });
        acknowledged.await.unwrap();
        let before = content(&store);
        let mut heard = store.subscribe();
        let by = AuditContext::new(Principal::Operator(5), Verb::Approve, CorrelationId([3; 8]));

        let first = Arc::clone(&store);
        let by_first = by.clone();
        let first = tokio::spawn(async move {
            let approve = first.commit(|tx| {
                tx.edit_node(node(1).id, |node| node.change(PhaseChange::Approve))
                    .unwrap()
                    .unwrap();
                tx.event(Event::new(AT, &by_first, EventKind::Discovered, "approved"));
                tx.remove_lease(lease(1).address);
                tx.put_session(BootSession::open(
                    BootSessionId([1; 12]),
                    node(1).mac,
                    Stage::Dhcp,
                    AT,
                ));
                Ok::<_, StoreError>(())
            });
            approve.await
        });
        let is_approved = || {
            store.read(|model| model.node(node(1).id).is_some_and(|node| node.phase.is_admitted()))
        };
        while !is_approved() {
            tokio::task::yield_now().await;
        }
        let second = Arc::clone(&store);
        let second = tokio::spawn(async move {
            let put = second.commit(|tx| {
                tx.put_node(node(2));
                tx.put_lease(Lease { mac: node(2).mac, ..lease(1) });
                Ok::<_, StoreError>(())
            });
            put.await
        });
        while store.read(|model| model.node(node(2).id).is_none()) {
            tokio::task::yield_now().await;
        }
        // The first write fails; the second change may be in it or behind it.
        outcomes.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        for refused in [first.await.unwrap(), second.await.unwrap()] {
            assert!(
                matches!(&refused, Err(StoreError::Write(error)) if error.kind() == io::ErrorKind::StorageFull),
                "{refused:?}"
            );
        }
        assert_eq!(content(&store), before);
        assert!(store.read(|model| model.newest_session(node(1).mac).is_none()));
        assert!(!by.audited.is_set() && heard.try_recv().is_err());

        outcomes.send(Ok(())).unwrap();
        let event = Event::new(AT, Actor::Central, EventKind::Discovered, "again");
        let repeated = store.commit(|tx| {
            tx.put_node(node(2));
            tx.event(event);
            Ok::<_, StoreError>(())
        });
        repeated.await.unwrap();
        assert_eq!(content(&store).0.len(), 2);
        assert_eq!(
            heard.recv().await.unwrap().0,
            EventSeq(1),
            "the number of an undone event is not reused"
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn reader_of_an_unwritten_change_has_its_outcome() {
        let (outcomes, script) = mpsc::channel();
        let store = Arc::new(Store::from_log(Box::new(Scripted(Mutex::new(script)))).unwrap());
        let commit = |put: bool| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let commit = store.commit(|tx| {
                    if put {
                        tx.put_node(node(1));
                    }
                    Ok::<_, StoreError>(tx.node(node(1).id).is_some())
                });
                commit.await
            })
        };
        let is_applied = || store.read(|model| model.node(node(1).id).is_some());
        for outcome in [Err(io::ErrorKind::StorageFull.into()), Ok(())] {
            let is_written = outcome.is_ok();
            let first = commit(true);
            // Applied, and taken by the task that writes.
            while !is_applied() || !store.shared.queue().changes.is_empty() {
                tokio::task::yield_now().await;
            }
            let second = commit(false);
            let reader = Arc::clone(&store);
            let has_node = |model: &Model| model.node(node(1).id).is_some();
            let third = tokio::spawn(async move { reader.read_acknowledged(has_node).await });
            // All wait for the disk, or one has answered too early.
            let is_early = || second.is_finished() || third.is_finished();
            while store.shared.queue().changes.len() < 2 && !is_early() {
                tokio::task::yield_now().await;
            }
            assert!(!second.is_finished(), "the change is not on the disk");
            assert!(!third.is_finished(), "nor is what it has read");
            outcomes.send(outcome).unwrap();
            let answers = [first.await.unwrap(), second.await.unwrap(), third.await.unwrap()];
            assert!(answers.iter().all(|answer| answer.is_ok() == is_written), "{answers:?}");
        }
        assert!(commit(false).await.unwrap().unwrap(), "nothing is unwritten: no disk is asked");
    }
}
