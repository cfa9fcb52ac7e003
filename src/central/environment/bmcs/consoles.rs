//! Serial consoles of machines: one of each at a time, because Serial over LAN has one session. The
//! console of an operator ends that of a recorder.

use super::{Bmcs, ResolvedBmc};
use meshd_bmc::SerialConsole;
use meshd_model::operations::BmcFailure;
use meshd_types::BmcRequest;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{sync::oneshot, time::timeout};

/// Maximum number of open consoles of operators.
const MAX_CONSOLES: usize = 64;
/// Maximum number of consoles that are recorded at the same time.
const MAX_RECORDERS: usize = 32;
/// Time in which a recorder gives its console back; its program is killed earlier.
const RELEASE_TIME: Duration = Duration::from_secs(8);
/// Time in which the BMC ends the session of a recorder.
const SESSION_END_TIME: Duration = Duration::from_secs(8);

/// Open consoles, by the key of their BMC.
#[derive(Default)]
pub(super) struct ConsoleTable {
    open: BTreeMap<String, ConsoleUse>,
    /// ID of the last console.
    last: u64,
}

/// One open console.
struct ConsoleUse {
    id: u64,
    /// `None` for the console of an operator.
    recorder: Option<RecorderHandle>,
}

/// Ends a recorder: it stops when `stop` is dropped, and drops the other end of `released` then.
struct RecorderHandle {
    stop: oneshot::Sender<()>,
    released: oneshot::Receiver<()>,
    has_session: Arc<AtomicBool>,
}

impl ConsoleTable {
    fn count(&self, is_counted: impl Fn(&ConsoleUse) -> bool) -> usize {
        self.open.values().filter(|console| is_counted(console)).count()
    }

    /// Opens a console, in place of that of a recorder. Returns its ID, and the recorder.
    fn open_for_operator(
        &mut self,
        key: &str,
    ) -> Result<(u64, Option<RecorderHandle>), &'static str> {
        if self.count(|console| console.recorder.is_none()) >= MAX_CONSOLES {
            return Err("too many serial consoles are open");
        }
        if self.open.get(key).is_some_and(|console| console.recorder.is_none()) {
            return Err("its serial console is open already");
        }
        let before = self.insert(key, None);
        Ok((self.last, before.and_then(|console| console.recorder)))
    }

    /// Opens a console for a recorder; `None` if it is open, or if too many are recorded.
    fn open_for_recorder(&mut self, key: &str, recorder: RecorderHandle) -> Option<u64> {
        if !self.has_room() || self.open.contains_key(key) {
            return None;
        }
        self.insert(key, Some(recorder));
        Some(self.last)
    }

    fn has_room(&self) -> bool {
        self.count(|console| console.recorder.is_some()) < MAX_RECORDERS
    }

    fn insert(&mut self, key: &str, recorder: Option<RecorderHandle>) -> Option<ConsoleUse> {
        self.last += 1;
        self.open.insert(key.to_owned(), ConsoleUse { id: self.last, recorder })
    }

    /// Closes a console, unless another one has replaced it.
    fn close(&mut self, key: &str, id: u64) {
        if self.open.get(key).is_some_and(|console| console.id == id) {
            self.open.remove(key);
        }
    }
}

/// The only serial console of a machine. Another one may be opened when it is dropped.
pub(crate) struct OpenConsole {
    bmcs: Arc<Bmcs>,
    key: String,
    id: u64,
}

impl Drop for OpenConsole {
    fn drop(&mut self) {
        self.bmcs.consoles.lock().close(&self.key, self.id);
    }
}

/// The console of a recorder, which gives it back when `stop` ends.
pub(crate) struct RecordedConsole {
    /// Ends when an operator wants the console.
    pub(crate) stop: oneshot::Receiver<()>,
    /// True if the recorder had the session of the BMC, and did not lose it to somebody else.
    pub(crate) has_session: Arc<AtomicBool>,
    // Dropped in this order: an operator who waits finds the console closed.
    _open: OpenConsole,
    _released: oneshot::Sender<()>,
}

impl Bmcs {
    /// Ends the recorder of a console, waits for a permit, and opens the console.
    pub(crate) async fn console_when_permitted(
        self: &Arc<Self>,
        bmc: &ResolvedBmc,
    ) -> Result<(SerialConsole, OpenConsole), BmcFailure> {
        let opened = {
            let mut consoles = self.consoles.lock();
            let opened = consoles.open_for_operator(&bmc.key);
            opened.map_err(|reason| BmcFailure::Failed(reason.to_owned()))
        };
        let (id, recorder) = opened?;
        let open = OpenConsole { bmcs: self.clone(), key: bmc.key.clone(), id };
        if let Some(RecorderHandle { stop, released, has_session }) = recorder {
            drop(stop);
            // Both ends mean that the recorder is gone, or hangs.
            let _ = timeout(RELEASE_TIME, released).await;
            // `ipmitool` may end without the end of its session, and the BMC has only one. The
            // session of somebody else stays.
            if has_session.load(Ordering::Relaxed) {
                // The BMC refuses if the session has ended.
                let _ = timeout(SESSION_END_TIME, self.end_session(bmc)).await;
            }
        }
        Ok((self.open_console(bmc).await?, open))
    }

    /// Returns true if one more console may be recorded.
    pub(crate) fn may_record(&self) -> bool {
        self.consoles.lock().has_room()
    }

    /// Takes the console of a machine for a recorder, unless it is in use.
    pub(crate) fn try_record(self: &Arc<Self>, bmc: &ResolvedBmc) -> Option<RecordedConsole> {
        let ((stop, stopped), (release, released)) = (oneshot::channel(), oneshot::channel());
        let has_session = Arc::new(AtomicBool::new(false));
        let recorder = RecorderHandle { stop, released, has_session: has_session.clone() };
        let id = self.consoles.lock().open_for_recorder(&bmc.key, recorder)?;
        let open = OpenConsole { bmcs: self.clone(), key: bmc.key.clone(), id };
        Some(RecordedConsole { stop: stopped, has_session, _open: open, _released: release })
    }

    /// Waits for a permit, and ends the session of a serial console that the caller has taken.
    async fn end_session(self: &Arc<Self>, bmc: &ResolvedBmc) -> Result<(), BmcFailure> {
        let permit = self.wait_for_permit(bmc, BmcRequest::Status).await?;
        self.call(permit, bmc, |bmc| async move { bmc.end_serial_console().await }).await
    }

    /// Waits for a permit, and opens a serial console that the caller has taken.
    pub(crate) async fn open_console(
        self: &Arc<Self>,
        bmc: &ResolvedBmc,
    ) -> Result<SerialConsole, BmcFailure> {
        let permit = self.wait_for_permit(bmc, BmcRequest::Status).await?;
        self.call(permit, bmc, |bmc| async move { bmc.serial_console().await }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> (RecorderHandle, oneshot::Receiver<()>) {
        let ((stop, stopped), (_, released)) = (oneshot::channel(), oneshot::channel());
        let has_session = Arc::default();
        (RecorderHandle { stop, released, has_session }, stopped)
    }

    #[test]
    fn operator_replaces_a_recorder_and_no_other_operator() {
        let mut table = ConsoleTable::default();
        let (recorder, mut stopped) = handle();
        let recorded = table.open_for_recorder("one", recorder).expect("free");
        assert_eq!(table.open_for_recorder("one", handle().0), None, "it is recorded");
        let (own, recorder) = table.open_for_operator("one").expect("a recorder yields");
        assert!(stopped.try_recv().is_err_and(|end| end == oneshot::error::TryRecvError::Empty));
        drop(recorder.expect("the recorder that has to end"));
        assert_eq!(stopped.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        table.close("one", recorded);
        assert!(table.open_for_operator("one").is_err(), "the end of the recorder frees nothing");
        assert_eq!(table.open_for_recorder("one", handle().0), None);
        table.close("one", own);
        assert!(table.open_for_recorder("one", handle().0).is_some());
    }

    #[test]
    fn consoles_of_each_kind_are_bounded() {
        let mut table = ConsoleTable::default();
        let mut record = |number: usize| table.open_for_recorder(&number.to_string(), handle().0);
        let recorded = (0..=MAX_RECORDERS).filter_map(&mut record).count();
        assert_eq!(recorded, MAX_RECORDERS);
        let mut open = |number: usize| table.open_for_operator(&format!("own {number}")).is_ok();
        assert_eq!((0..=MAX_CONSOLES).filter(|number| open(*number)).count(), MAX_CONSOLES);
    }
}
