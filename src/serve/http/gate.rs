//! How many connections there may be, and which one has to go when a new one comes and all places are taken.
//!
//! Whoever makes no progress goes first: one without a request, the longest idle; else the response that was slowest, once it had
//! time to begin. One address may have all places as long as nobody else wants one (a relay or a lab is many machines behind one
//! address); when places are scarce, the addresses with more than a share of them give first. So a hoarder loses its connections
//! one by one to those who want something, and a machine that loads is not disturbed.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

/// One part in so many of all places may belong to one address when all are taken.
const SHARE: usize = 4;
/// Time that a response has before its rate counts.
const BEGINNING: Duration = Duration::from_secs(5);
/// Time that a new connection has before it counts as idle.
pub(super) const ARRIVING: Duration = Duration::from_millis(500);
/// How often the places are looked at while nobody can be asked to go.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What one connection does: written by its own task, read when places are scarce.
#[derive(Debug)]
pub struct Meter {
    epoch: Instant,
    /// Milliseconds from `epoch` to when the response under way began, or to when the last one ended.
    since: AtomicU64,
    /// Bytes of the response under way; 0 while there is none.
    written: AtomicU64,
    /// 1 while a request is being answered.
    busy: AtomicU64,
}

impl Meter {
    fn new() -> Self {
        Meter { epoch: Instant::now(), since: AtomicU64::new(0), written: AtomicU64::new(0), busy: AtomicU64::new(0) }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A request came in.
    pub fn asked(&self) {
        self.since.store(self.now(), Relaxed);
        self.written.store(0, Relaxed);
        self.busy.store(1, Relaxed);
    }

    /// Bytes of the response went out.
    pub fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Relaxed);
    }

    /// Everything that was to be written is.
    pub fn flushed(&self) {
        if self.written.load(Relaxed) > 0 {
            self.since.store(self.now(), Relaxed);
            self.written.store(0, Relaxed);
            self.busy.store(0, Relaxed);
        }
    }

    /// Bytes and time of the response under way.
    pub fn response(&self) -> (u64, Duration) {
        let took = self.now().saturating_sub(self.since.load(Relaxed));
        (self.written.load(Relaxed), Duration::from_millis(took))
    }

    fn standing(&self, from: Ipv4Addr) -> Standing {
        let (written, took) = self.response();
        Standing { from, busy: self.busy.load(Relaxed) == 1, took, written }
    }
}

/// How a connection stands when one has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    from: Ipv4Addr,
    /// A request is being answered.
    busy: bool,
    /// How long that takes by now; while none is, how long ago the last one was.
    took: Duration,
    /// Bytes of the response so far.
    written: u64,
}

impl Standing {
    /// Who goes first: the least of these; `None` stays. Idle ones before busy ones.
    fn claim(&self) -> Option<(bool, u64)> {
        match self.busy {
            false if self.took < ARRIVING => None,
            false => Some((false, u64::MAX - self.took.as_millis() as u64)),
            true if self.took < BEGINNING => None,
            true => Some((true, self.written / self.took.as_secs().max(1))),
        }
    }
}

/// Chooses who goes, if anybody can be asked to.
fn weakest(standings: &[(u64, Standing)], places: usize) -> Option<u64> {
    let mut of_address: BTreeMap<Ipv4Addr, usize> = BTreeMap::new();
    for (_, standing) in standings {
        *of_address.entry(standing.from).or_default() += 1;
    }
    let within_share = |standing: &Standing| of_address.get(&standing.from).is_some_and(|own| *own <= places / SHARE);
    let candidates = standings.iter().filter_map(|(id, standing)| {
        let claim = standing.claim()?;
        Some(((within_share(standing), claim), *id))
    });
    candidates.min().map(|(_, id)| id)
}

/// The places of one server.
pub struct Gate {
    places: usize,
    inner: Mutex<Inner>,
    freed: Notify,
}

#[derive(Default)]
struct Inner {
    next: u64,
    taken: BTreeMap<u64, Taken>,
}

struct Taken {
    from: Ipv4Addr,
    meter: Arc<Meter>,
    leave: CancellationToken,
}

/// A connection's place, which it has until it is dropped.
pub struct Place {
    gate: Arc<Gate>,
    id: u64,
    /// To be told what the connection does.
    pub meter: Arc<Meter>,
    /// Cancelled when the connection has to go.
    pub leave: CancellationToken,
}

impl Gate {
    /// A gate with so many places.
    pub fn new(places: usize) -> Arc<Self> {
        Arc::new(Gate { places, inner: Mutex::default(), freed: Notify::new() })
    }

    /// A place for a connection; when all are taken, somebody else's.
    pub async fn enter(self: &Arc<Self>, from: Ipv4Addr) -> Place {
        loop {
            if let Some(place) = self.try_enter(from) {
                return place;
            }
            let freed = self.freed.notified();
            if self.evict() {
                metrics::counter!("meshd_http_evicted_total").increment(1);
            }
            let _ = tokio::time::timeout(LOOK_AGAIN, freed).await;
        }
    }

    fn try_enter(self: &Arc<Self>, from: Ipv4Addr) -> Option<Place> {
        let mut inner = self.lock();
        if inner.taken.len() >= self.places {
            return None;
        }
        inner.next += 1;
        let id = inner.next;
        let (meter, leave) = (Arc::new(Meter::new()), CancellationToken::new());
        inner.taken.insert(id, Taken { from, meter: meter.clone(), leave: leave.clone() });
        metrics::gauge!("meshd_http_connections").set(inner.taken.len() as f64);
        Some(Place { gate: self.clone(), id, meter, leave })
    }

    /// Tells the weakest connection to go; false if none is weak.
    fn evict(&self) -> bool {
        let inner = self.lock();
        let staying = inner.taken.iter().filter(|(_, taken)| !taken.leave.is_cancelled());
        let standings: Vec<_> = staying.map(|(id, taken)| (*id, taken.meter.standing(taken.from))).collect();
        // Somebody is on its way out already.
        if standings.len() < inner.taken.len() {
            return false;
        }
        let weakest = weakest(&standings, self.places).and_then(|id| inner.taken.get(&id));
        weakest.inspect(|taken| taken.leave.cancel()).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.gate.lock();
        inner.taken.remove(&self.id);
        metrics::gauge!("meshd_http_connections").set(inner.taken.len() as f64);
        drop(inner);
        self.gate.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAB: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn standing(from: Ipv4Addr, busy: bool, seconds: u64, written: u64) -> Standing {
        Standing { from, busy, took: Duration::from_secs(seconds), written }
    }

    fn goes(standings: &[Standing], places: usize) -> Option<u64> {
        let numbered: Vec<_> = (0..).zip(standings.iter().copied()).collect();
        weakest(&numbered, places)
    }

    #[test]
    fn the_longest_idle_goes_before_any_that_works() {
        let idle = [standing(LAB, false, 2, 0), standing(LAB, false, 9, 0), standing(LAB, true, 100, 10)];
        assert_eq!(goes(&idle, 3), Some(1));
    }

    #[test]
    fn of_those_that_work_the_slowest_goes_and_one_that_has_just_begun_stays() {
        let busy = [standing(LAB, true, 10, 9000), standing(LAB, true, 10, 5000), standing(LAB, true, 1, 0)];
        assert_eq!(goes(&busy, 3), Some(1));
        assert_eq!(goes(&[standing(LAB, true, 1, 0), standing(LAB, false, 0, 0)], 2), None);
    }

    #[test]
    fn an_address_with_more_than_its_share_gives_first() {
        let mut all = vec![standing(LAB, true, 10, 1_000_000); 7];
        all.push(standing(OTHER, true, 10, 1));
        assert!(goes(&all, 8).is_some_and(|id| id < 7));
    }

    #[tokio::test]
    async fn who_comes_when_all_places_are_taken_gets_one_and_who_works_keeps_its_own() {
        let gate = Gate::new(2);
        let busy = gate.enter(LAB).await;
        busy.meter.asked();
        let idle = gate.enter(LAB).await;
        let left = tokio::spawn(async move {
            idle.leave.cancelled().await;
            drop(idle);
        });
        let _new = gate.enter(OTHER).await;
        left.await.expect("no panic");
        assert!(!busy.leave.is_cancelled());
    }
}
