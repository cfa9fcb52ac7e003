//! Connection limits of one API: the maximum number of connections, and the choice of the connection that a new one replaces.
//!
//! A new connection at the limit evicts another one. Connections without a request are evicted first, then the slowest responses after an
//! initial period. Within each group, sources above their share lose connections first, and the longest idle connection is evicted first.
//! Progress is measured in bytes, not activity. One source may use all connections while no other source needs one, because a relay or a
//! lab has many machines behind one address. Connections with a valid credential are evicted last. A client that hoards connections thus
//! loses them one by one, and a loading machine is not disturbed.
//!
//! Each API has a separate limit, derived from the limit of open files, so no API can exhaust another's file descriptors.

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

/// Label of the boot API, which also has separate metrics.
pub const HTTP: &str = "http";
/// At the limit, one source may use 1/`SHARE` of all connections.
const SHARE: usize = 4;
/// Age of a response after which its rate counts.
const BEGINNING: Duration = Duration::from_secs(5);
/// Age of a new connection after which it counts as idle.
pub const ARRIVING: Duration = Duration::from_millis(500);
/// For a source above its share, [`ARRIVING`] is divided by this number.
const HASTE: u32 = 10;
/// Retry interval while no connection can be evicted.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Activity of one connection. The connection's task writes it; the limiter reads it at the limit.
#[derive(Debug)]
pub struct Meter {
    epoch: Instant,
    /// Milliseconds from `epoch` to the start of the current response, or to the end of the last one.
    since: AtomicU64,
    /// Bytes of the current response; 0 if there is none.
    written: AtomicU64,
    /// 1 while a request is being answered, otherwise 0.
    busy: AtomicU64,
}

impl Meter {
    fn new() -> Self {
        Meter { epoch: Instant::now(), since: AtomicU64::new(0), written: AtomicU64::new(0), busy: AtomicU64::new(0) }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Records the arrival of a request.
    pub fn asked(&self) {
        self.since.store(self.now(), Relaxed);
        self.written.store(0, Relaxed);
        self.busy.store(1, Relaxed);
    }

    /// Records written bytes of the response.
    pub fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Relaxed);
    }

    /// Records that all pending bytes are written.
    pub fn flushed(&self) {
        if self.written.load(Relaxed) > 0 {
            self.since.store(self.now(), Relaxed);
            self.written.store(0, Relaxed);
            self.busy.store(0, Relaxed);
        }
    }

    /// Returns the bytes and the duration of the current response.
    pub fn response(&self) -> (u64, Duration) {
        let took = self.now().saturating_sub(self.since.load(Relaxed));
        (self.written.load(Relaxed), Duration::from_millis(took))
    }

    fn standing(&self, source: &Source) -> ConnectionState {
        let (written, took) = self.response();
        ConnectionState { source: source.clone(), busy: self.busy.load(Relaxed) == 1, took, written }
    }
}

/// Source to which a connection is attributed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Client address of an unauthenticated connection.
    Address(IpAddr),
    /// Token or certificate of an authenticated connection.
    Credential(String),
}

/// State of a connection when one must be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ConnectionState {
    source: Source,
    /// True while a request is being answered.
    busy: bool,
    /// Duration of the current response; if idle, time since the last one.
    took: Duration,
    /// Bytes of the current response.
    written: u64,
}

impl ConnectionState {
    /// Ranks connections that are all idle or all busy. The lowest rank is evicted first: the longest idle, or the slowest.
    fn rank(&self) -> u64 {
        match self.busy {
            false => u64::MAX - self.took.as_millis() as u64,
            true => self.written / self.took.as_secs().max(1),
        }
    }

    /// Returns true if the connection is too new to be evicted.
    fn is_young(&self, within_share: bool) -> bool {
        self.took
            < match (self.busy, within_share) {
                (true, _) => BEGINNING,
                (false, true) => ARRIVING,
                (false, false) => ARRIVING / HASTE,
            }
    }
}

/// Chooses the connection to evict, if any. A new connection may turn out to be idle, so no busy connection is evicted before that is
/// known.
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

/// Limits the connections of one API.
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

/// Permit of one connection, until it is dropped.
pub struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    id: u64,
    /// Receives the activity of the connection.
    pub meter: Arc<Meter>,
    /// Cancelled when the connection must end.
    pub leave: CancellationToken,
}

impl ConnectionLimiter {
    /// Creates a limiter with a maximum of at least one. `api` is its label in the metrics.
    pub fn new(api: &'static str, places: usize) -> Arc<Self> {
        Arc::new(ConnectionLimiter { api, places: places.max(1), inner: Mutex::default(), freed: Notify::new() })
    }

    /// Returns a permit for a connection. At the limit, evicts another connection.
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

    /// Evicts the weakest connection; returns false if none can be evicted.
    fn evict(&self) -> bool {
        let inner = self.lock();
        let staying = inner.taken.iter().filter(|(_, taken)| !taken.leave.is_cancelled());
        let standings: Vec<_> = staying.map(|(id, taken)| (*id, taken.meter.standing(&taken.source))).collect();
        // An evicted connection has not ended yet.
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
    /// Attributes the connection to a credential from now on.
    pub fn trust(&self, credential: String) {
        if let Some(taken) = self.limiter.lock().taken.get_mut(&self.id) {
            taken.source = Source::Credential(credential);
        }
    }

    /// Releases the permit before the connection ends, because another limit counts the connection from now on.
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
