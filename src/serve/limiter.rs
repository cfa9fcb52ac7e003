//! Connections of one API: how many there may be, and which one has to go when a new one comes and all places are taken.
//!
//! A connection without progress goes first: one without a request, the longest idle; else the response that is slowest, once it had
//! time to begin. Progress is bytes, not activity. One address may have all places as long as nobody else wants one (a relay or a lab
//! is many machines behind one address); when places are scarce, sources with more than a share of them give first. A connection
//! that showed a credential goes after all that showed none. So a hoarder loses its connections one by one to those who want
//! something, and a machine that loads is not disturbed.
//!
//! Each API has places of its own, as many as the limit of open files allows, so no API can take descriptors from another.

use meshd_types::fail;
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

/// The label of the boot API, which has metrics of its own, too.
pub const HTTP: &str = "http";
/// One part in so many of all places may belong to one source when all are taken.
const SHARE: usize = 4;
/// Time that a response has before its rate counts.
const BEGINNING: Duration = Duration::from_secs(5);
/// Time that a new connection has before it counts as idle.
pub const ARRIVING: Duration = Duration::from_millis(500);
/// A source with more than its share has one part in so many of that time.
const HASTE: u32 = 10;
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

    fn standing(&self, source: &Source) -> ConnectionState {
        let (written, took) = self.response();
        ConnectionState { source: source.clone(), busy: self.busy.load(Relaxed) == 1, took, written }
    }
}

/// To whom a connection counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Anybody at this address.
    Address(IpAddr),
    /// Whoever showed this token or certificate.
    Credential(String),
}

/// How a connection stands when one has to go.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ConnectionState {
    source: Source,
    /// A request is being answered.
    busy: bool,
    /// How long that takes by now; while none is, how long ago the last one was.
    took: Duration,
    /// Bytes of the response so far.
    written: u64,
}

impl ConnectionState {
    /// Of those that are idle or busy alike the least goes first: the longest idle, and the slowest.
    fn rank(&self) -> u64 {
        match self.busy {
            false => u64::MAX - self.took.as_millis() as u64,
            true => self.written / self.took.as_secs().max(1),
        }
    }

    /// True while it is too early to judge it.
    fn is_young(&self, within_share: bool) -> bool {
        self.took
            < match (self.busy, within_share) {
                (true, _) => BEGINNING,
                (false, true) => ARRIVING,
                (false, false) => ARRIVING / HASTE,
            }
    }
}

/// Chooses which connection goes, if any can be asked to. While one has just come and may turn out to be idle, none that works goes
/// in its place.
fn weakest(standings: &[(u64, ConnectionState)], places: usize) -> Option<u64> {
    let mut of_source: BTreeMap<&Source, usize> = BTreeMap::new();
    for (_, standing) in standings {
        *of_source.entry(&standing.source).or_default() += 1;
    }
    let candidates = standings.iter().filter_map(|(id, standing)| {
        let trusted = matches!(standing.source, Source::Credential(_));
        let within_share = of_source.get(&standing.source).is_some_and(|own| *own <= places / SHARE);
        let young = standing.is_young(within_share);
        let goes = (!young).then_some(*id);
        (!young || !standing.busy).then_some(((trusted, standing.busy, within_share, standing.rank()), goes))
    });
    candidates.min().and_then(|(_, goes)| goes)
}

/// The places of one API.
pub struct ConnectionLimiter {
    api: &'static str,
    places: usize,
    inner: Mutex<LimiterState>,
    freed: Notify,
}

#[derive(Default)]
struct LimiterState {
    next: u64,
    taken: BTreeMap<u64, Taken>,
}

struct Taken {
    source: Source,
    meter: Arc<Meter>,
    leave: CancellationToken,
}

/// The place of a connection, until it is dropped.
pub struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    id: u64,
    /// To be told what the connection does.
    pub meter: Arc<Meter>,
    /// Cancelled when the connection has to go.
    pub leave: CancellationToken,
}

impl ConnectionLimiter {
    /// A limiter with so many places, at least one. `api` is its label in the metrics.
    pub fn new(api: &'static str, places: usize) -> Arc<Self> {
        Arc::new(ConnectionLimiter { api, places: places.max(1), inner: Mutex::default(), freed: Notify::new() })
    }

    /// A place for a connection; when all are taken, that of another one.
    pub async fn enter(self: &Arc<Self>, source: Source) -> ConnectionPermit {
        loop {
            if let Some(permit) = self.try_enter(&source) {
                return permit;
            }
            let freed = self.freed.notified();
            if fail::defends("connection-eviction") && self.evict() {
                metrics::counter!("meshd_connections_evicted_total", "plane" => self.api).increment(1);
                if self.api == HTTP {
                    metrics::counter!("meshd_http_evicted_total").increment(1);
                }
            }
            let _ = tokio::time::timeout(LOOK_AGAIN, freed).await;
        }
    }

    fn try_enter(self: &Arc<Self>, source: &Source) -> Option<ConnectionPermit> {
        let mut inner = self.lock();
        if inner.taken.len() >= self.places {
            return None;
        }
        inner.next += 1;
        let id = inner.next;
        let (meter, leave) = (Arc::new(Meter::new()), CancellationToken::new());
        inner.taken.insert(id, Taken { source: source.clone(), meter: meter.clone(), leave: leave.clone() });
        self.show(&inner);
        Some(ConnectionPermit { limiter: self.clone(), id, meter, leave })
    }

    /// Tells the weakest connection to go; false if none is weak.
    fn evict(&self) -> bool {
        let inner = self.lock();
        let staying = inner.taken.iter().filter(|(_, taken)| !taken.leave.is_cancelled());
        let standings: Vec<_> = staying.map(|(id, taken)| (*id, taken.meter.standing(&taken.source))).collect();
        // One is on its way out already.
        if standings.len() < inner.taken.len() {
            return false;
        }
        let weakest = weakest(&standings, self.places).and_then(|id| inner.taken.get(&id));
        weakest.inspect(|taken| taken.leave.cancel()).is_some()
    }

    fn show(&self, inner: &LimiterState) {
        metrics::gauge!("meshd_connections", "plane" => self.api).set(inner.taken.len() as f64);
        if self.api == HTTP {
            metrics::gauge!("meshd_http_connections").set(inner.taken.len() as f64);
        }
    }

    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// The connection showed a credential: it counts to that from now on.
    pub fn trust(&self, credential: String) {
        if let Some(taken) = self.limiter.lock().taken.get_mut(&self.id) {
            taken.source = Source::Credential(credential);
        }
    }

    /// Gives the place back before the connection ends: another bound counts it from now on.
    pub fn settle(&self) {
        let mut inner = self.limiter.lock();
        let had_place = inner.taken.remove(&self.id).is_some();
        self.limiter.show(&inner);
        drop(inner);
        if had_place {
            self.limiter.freed.notify_one();
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const LAB: Source = Source::Address(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    const OTHER: Source = Source::Address(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)));

    fn standing(source: Source, busy: bool, seconds: u64, written: u64) -> ConnectionState {
        ConnectionState { source, busy, took: Duration::from_secs(seconds), written }
    }

    fn goes(standings: &[ConnectionState], places: usize) -> Option<u64> {
        let numbered: Vec<_> = (0..).zip(standings.iter().cloned()).collect();
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
        let limiter = ConnectionLimiter::new("test", 2);
        let busy = limiter.enter(LAB).await;
        busy.meter.asked();
        let idle = limiter.enter(LAB).await;
        let left = tokio::spawn(async move {
            idle.leave.cancelled().await;
            drop(idle);
        });
        let _new = limiter.enter(OTHER).await;
        left.await.expect("no panic");
        assert!(!busy.leave.is_cancelled());
    }

    #[test]
    fn a_relay_of_many_machines_that_load_keeps_its_places_from_idle_ones() {
        let mut all = vec![standing(LAB, true, 10, 1_000_000); 1000];
        all.push(standing(OTHER, false, 2, 0));
        assert_eq!(goes(&all, 1001), Some(1000));
    }

    #[tokio::test]
    async fn a_relay_may_have_every_place_while_nobody_else_wants_one() {
        let limiter = ConnectionLimiter::new("test", 1000);
        let mut all = Vec::new();
        for _ in 0..1000 {
            all.push(limiter.enter(LAB).await);
        }
        assert!(all.iter().all(|permit| !permit.leave.is_cancelled()));
    }

    #[test]
    fn a_credential_keeps_its_place_from_those_that_show_none() {
        let mut all = vec![standing(Source::Credential("node".to_owned()), false, 9, 0)];
        all.push(standing(LAB, true, 9, 1 << 30));
        assert_eq!(goes(&all, 64), Some(1));
    }

    #[test]
    fn a_source_above_its_share_is_hurried() {
        let young = ConnectionState { took: ARRIVING / 2, ..standing(LAB, false, 0, 0) };
        assert_eq!(goes(&vec![young.clone(); 16], 64), None);
        assert!(goes(&vec![young; 17], 64).is_some());
    }

    #[tokio::test]
    async fn a_settled_connection_has_no_place_any_more() {
        let limiter = ConnectionLimiter::new("test", 1);
        let link = limiter.enter(LAB).await;
        link.settle();
        let _other = limiter.enter(OTHER).await;
        drop(link);
        assert!(limiter.try_enter(&LAB).is_none(), "it does not give the place of another one back");
    }
}
