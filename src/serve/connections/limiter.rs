//! Connection limits of one API: the maximum number of connections, and the choice of the
//! connection that a new one replaces.
//!
//! A new connection at the limit evicts another one. Connections without a request are evicted
//! first, then the slowest responses after an initial period. Within each group, sources above
//! their share lose connections first, and the longest idle connection is evicted first. Progress
//! is measured in bytes, not activity. One source may use all connections while no other source
//! needs one, because a relay or a lab has many machines behind one address. Connections with a
//! valid credential are evicted last. A client that hoards connections thus loses them one by one,
//! and a loading machine is not disturbed.
//!
//! Each API has a separate limit, derived from the limit of open files, so no API can exhaust
//! another's file descriptors.

use meshd_types::failpoint;
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
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Activity of one connection. The connection's task writes it; the limiter reads it at the limit.
#[derive(Debug)]
pub struct Meter {
    epoch: Instant,
    /// Milliseconds from `epoch` to the start of the current response, or to the end of the last
    /// one.
    since: AtomicU64,
    /// Bytes of the current response; 0 if there is none.
    written: AtomicU64,
    /// 1 while a request is being answered, otherwise 0.
    busy: AtomicU64,
}

impl Meter {
    fn new() -> Self {
        Meter {
            epoch: Instant::now(),
            since: AtomicU64::new(0),
            written: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Records the arrival of a request.
    pub fn request_started(&self) {
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

    fn state(&self, source: &Source) -> ConnectionState {
        let (written, took) = self.response();
        ConnectionState {
            source: source.clone(),
            busy: self.busy.load(Relaxed) == 1,
            took,
            written,
        }
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
    /// Ranks connections that are all idle or all busy. The lowest rank is evicted first: the
    /// longest idle, or the slowest.
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

/// Chooses the connection to evict, if any. A new connection may turn out to be idle, so no busy
/// connection is evicted before that is known, except for those of a credential above its share:
/// else new connections wait for each other in the rest of the table.
fn weakest(states: &[(u64, ConnectionState)], limit: usize) -> Option<u64> {
    let mut of_source: BTreeMap<&Source, usize> = BTreeMap::new();
    for (_, state) in states {
        *of_source.entry(&state.source).or_default() += 1;
    }
    let candidates = states.iter().filter_map(|(id, state)| {
        let trusted = is_trusted(state);
        let within_share = of_source.get(&state.source).is_some_and(|own| *own <= limit / SHARE);
        let young = state.is_young(within_share);
        let id = (!young).then_some(*id);
        (!young || !state.busy).then_some(((trusted, state.busy, within_share, state.rank()), id))
    });
    let first = candidates.min().and_then(|(_, id)| id);
    let hoards = |state: &ConnectionState| {
        is_trusted(state) && of_source.get(&state.source).is_some_and(|own| *own > limit / SHARE)
    };
    let hoarded = states.iter().filter(|(_, state)| hoards(state) && !state.is_young(false));
    first.or_else(|| {
        let weakest = hoarded.min_by_key(|(_, state)| (state.busy, state.rank()));
        weakest.map(|(id, _)| *id).filter(|_| failpoint::defends("credential-share"))
    })
}

fn is_trusted(state: &ConnectionState) -> bool {
    matches!(state.source, Source::Credential(_))
}

/// Limits the connections of one API.
pub struct ConnectionLimiter {
    api: &'static str,
    limit: usize,
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
    eviction: CancellationToken,
}

/// Permit of one connection, until it is dropped.
pub struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    id: u64,
    /// Receives the activity of the connection.
    pub meter: Arc<Meter>,
    /// Cancelled when the connection must end.
    pub eviction: CancellationToken,
}

impl ConnectionLimiter {
    /// Creates a limiter with a maximum of at least one. `api` is its label in the metrics.
    pub fn new(api: &'static str, limit: usize) -> Arc<Self> {
        Arc::new(ConnectionLimiter {
            api,
            limit: limit.max(1),
            inner: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// Returns a permit for a connection. At the limit, evicts another connection.
    pub async fn enter(self: &Arc<Self>, source: Source) -> ConnectionPermit {
        loop {
            if let Some(permit) = self.try_enter(&source) {
                return permit;
            }
            let freed = self.freed.notified();
            if failpoint::defends("connection-eviction") && self.evict() {
                metrics::counter!("meshd_connections_evicted_total", "api" => self.api)
                    .increment(1);
                if self.api == HTTP {
                    metrics::counter!("meshd_http_evicted_total").increment(1);
                }
            }
            let _ = tokio::time::timeout(RETRY_INTERVAL, freed).await;
        }
    }

    fn try_enter(self: &Arc<Self>, source: &Source) -> Option<ConnectionPermit> {
        let mut inner = self.lock();
        if inner.taken.len() >= self.limit {
            return None;
        }
        inner.next += 1;
        let id = inner.next;
        let meter = Arc::new(Meter::new());
        let eviction = CancellationToken::new();
        inner.taken.insert(
            id,
            Taken { source: source.clone(), meter: meter.clone(), eviction: eviction.clone() },
        );
        self.show(&inner);
        Some(ConnectionPermit { limiter: self.clone(), id, meter, eviction })
    }

    /// Evicts the weakest connection; returns false if none can be evicted.
    fn evict(&self) -> bool {
        let inner = self.lock();
        let staying = inner.taken.iter().filter(|(_, taken)| !taken.eviction.is_cancelled());
        let states: Vec<_> =
            staying.map(|(id, taken)| (*id, taken.meter.state(&taken.source))).collect();
        // An evicted connection has not ended yet.
        if states.len() < inner.taken.len() {
            return false;
        }
        let weakest = weakest(&states, self.limit).and_then(|id| inner.taken.get(&id));
        weakest.inspect(|taken| taken.eviction.cancel()).is_some()
    }

    fn show(&self, inner: &LimiterState) {
        metrics::gauge!("meshd_connections", "api" => self.api).set(inner.taken.len() as f64);
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

    /// Releases the permit before the connection ends, because another limit counts the connection
    /// from now on.
    pub fn settle(&self) {
        let mut inner = self.limiter.lock();
        let had_permit = inner.taken.remove(&self.id).is_some();
        self.limiter.show(&inner);
        drop(inner);
        if had_permit {
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

    fn state(source: Source, busy: bool, seconds: u64, written: u64) -> ConnectionState {
        ConnectionState { source, busy, took: Duration::from_secs(seconds), written }
    }

    fn evicted(states: &[ConnectionState], limit: usize) -> Option<u64> {
        let numbered: Vec<_> = (0..).zip(states.iter().cloned()).collect();
        weakest(&numbered, limit)
    }

    #[test]
    fn longest_idle_connection_is_evicted_before_busy_ones() {
        let idle = [state(LAB, false, 2, 0), state(LAB, false, 9, 0), state(LAB, true, 100, 10)];
        assert_eq!(evicted(&idle, 3), Some(1));
    }

    #[test]
    fn slowest_busy_connection_is_evicted_but_new_one_stays() {
        let busy = [state(LAB, true, 10, 9000), state(LAB, true, 10, 5000), state(LAB, true, 1, 0)];
        assert_eq!(evicted(&busy, 3), Some(1));
        assert_eq!(evicted(&[state(LAB, true, 1, 0), state(LAB, false, 0, 0)], 2), None);
    }

    #[test]
    fn credential_above_its_share_makes_room_for_new_connections() {
        let viewer = || Source::Credential("viewer".to_owned());
        let mut all = vec![state(viewer(), true, 60, 100); 3];
        all.push(state(LAB, false, 0, 0));
        assert!(
            evicted(&all, 4).is_some_and(|id| id < 3),
            "it has more than a quarter of the connections"
        );
        assert_eq!(evicted(&[state(viewer(), true, 60, 100), state(LAB, false, 0, 0)], 4), None);
    }

    #[test]
    fn address_above_its_share_is_evicted_first() {
        let mut all = vec![state(LAB, true, 10, 1_000_000); 7];
        all.push(state(OTHER, true, 10, 1));
        assert!(evicted(&all, 8).is_some_and(|id| id < 7));
    }

    #[tokio::test]
    async fn new_connection_at_limit_evicts_idle_and_keeps_busy() {
        let limiter = ConnectionLimiter::new("test", 2);
        let busy = limiter.enter(LAB).await;
        busy.meter.request_started();
        let idle = limiter.enter(LAB).await;
        let left = tokio::spawn(async move {
            idle.eviction.cancelled().await;
            drop(idle);
        });
        let _new = limiter.enter(OTHER).await;
        left.await.expect("no panic");
        assert!(!busy.eviction.is_cancelled());
    }

    #[test]
    fn busy_connections_of_one_address_outrank_idle_one() {
        let mut all = vec![state(LAB, true, 10, 1_000_000); 1000];
        all.push(state(OTHER, false, 2, 0));
        assert_eq!(evicted(&all, 1001), Some(1000));
    }

    #[tokio::test]
    async fn address_may_use_all_permits_while_no_other_waits() {
        let limiter = ConnectionLimiter::new("test", 1000);
        let mut all = Vec::new();
        for _ in 0..1000 {
            all.push(limiter.enter(LAB).await);
        }
        assert!(all.iter().all(|permit| !permit.eviction.is_cancelled()));
    }

    #[test]
    fn credential_outranks_anonymous_connection() {
        let mut all = vec![state(Source::Credential("node".to_owned()), false, 9, 0)];
        all.push(state(LAB, true, 9, 1 << 30));
        assert_eq!(evicted(&all, 64), Some(1));
    }

    #[test]
    fn source_above_its_share_loses_arrival_grace() {
        let young = ConnectionState { took: ARRIVING / 2, ..state(LAB, false, 0, 0) };
        assert_eq!(evicted(&vec![young.clone(); 16], 64), None);
        assert!(evicted(&vec![young; 17], 64).is_some());
    }

    #[tokio::test]
    async fn settled_connection_releases_its_permit_once() {
        let limiter = ConnectionLimiter::new("test", 1);
        let link = limiter.enter(LAB).await;
        link.settle();
        let _other = limiter.enter(OTHER).await;
        drop(link);
        assert!(
            limiter.try_enter(&LAB).is_none(),
            "a settled connection does not release the permit of another one"
        );
    }
}
