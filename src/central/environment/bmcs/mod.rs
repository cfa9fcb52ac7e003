//! BMCs of machines: which one a machine has, and requests to it, bounded in number and rate.
//!
//! | module | content |
//! | --- | --- |
//! | here | the bounds, and the request |
//! | `consoles` | serial consoles: one of each machine, recorded or of an operator |
//! | `error` | why a machine has no usable BMC |
//! | `logins` | logins that a BMC refused, or may have: they are not sent again for a while |
//! | `passwords` | passwords of BMCs, read from their files |
//! | `resolve` | the BMC of a machine, by its record and the rules of the site |

mod consoles;
mod error;
mod logins;
mod passwords;
mod resolve;

pub(crate) use consoles::RecordedConsole;
pub use error::BmcError;
pub use passwords::password_faults;
pub(crate) use resolve::{
    BmcOwner, NetworkKey, ResolvedBmc, driver_of, host_of, ladder_of, recorded_address, resolve,
    shared_with,
};

use crate::{environment::Environment, locks::Leaf};
use consoles::ConsoleTable;
use logins::{LoginKey, LoginStates};
use meshd_bmc::{Bmc, ReportKind, ReportRow};
use meshd_model::operations::{BmcFailure, BmcResult};
use meshd_types::{BmcRequest, MacAddr, NodeId, OperationId, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// Minimum time between two requests to one BMC: many have a slow processor.
const REQUEST_INTERVAL: Duration = Duration::from_millis(500);
/// Difference between the wall clock and the monotonic clock that is a jump.
const CLOCK_JUMP: Duration = Duration::from_secs(5);
/// Maximum time of a report, which is many requests, in timeouts of one. Orders to this BMC wait.
const REPORT_TIMEOUTS: u32 = 4;
/// Pause of a request that waits for its permit.
const PERMIT_PAUSE: Duration = Duration::from_millis(50);

/// Requests to BMCs.
pub struct Bmcs {
    env: Arc<Environment>,
    state: Leaf<RequestState>,
    consoles: Leaf<ConsoleTable>,
    logins: Leaf<LoginStates>,
    login_key: LoginKey,
}

#[derive(Default)]
struct RequestState {
    /// BMCs with a request under way.
    busy: BTreeSet<String>,
    /// End of the last request to each BMC, by monotonic time.
    last_request: BTreeMap<String, Duration>,
    /// The last start of a machine, by monotonic time.
    last_start: Option<Duration>,
    /// Orders whose request is under way in this process.
    in_flight: BTreeSet<(OperationId, NodeId)>,
    /// Wall clock and monotonic clock at the last look.
    clocks: Option<(Timestamp, Duration)>,
    /// Machines that have not booted, by the ID under which orders to them are recorded.
    machines: BTreeMap<NodeId, MacAddr>,
}

/// The bounds of requests at one time.
struct Bounds {
    max_requests: usize,
    stagger: Duration,
    /// Monotonic time.
    now: Duration,
}

impl RequestState {
    fn admits(&self, bounds: &Bounds, request: BmcRequest) -> bool {
        let is_early = |last| bounds.now.saturating_sub(last) < bounds.stagger;
        let is_staggered = request.starts_machine() && self.last_start.is_some_and(is_early);
        !is_staggered && self.busy.len() < bounds.max_requests
    }
}

/// The right to send one request to a BMC. Released when it is dropped.
pub(crate) struct RequestPermit {
    bmcs: Arc<Bmcs>,
    key: String,
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let now = self.bmcs.env.monotonic();
        let mut state = self.bmcs.state.lock();
        state.busy.remove(&self.key);
        state.last_request.insert(std::mem::take(&mut self.key), now);
    }
}

/// Marks the request of an order as under way.
pub(crate) struct InFlight {
    bmcs: Arc<Bmcs>,
    order: (OperationId, NodeId),
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.bmcs.state.lock().in_flight.remove(&self.order);
    }
}

impl Bmcs {
    pub(crate) fn new(env: Arc<Environment>) -> Self {
        Bmcs {
            env,
            state: Leaf::default(),
            consoles: Leaf::default(),
            logins: Leaf::default(),
            login_key: LoginKey::default(),
        }
    }

    /// Remembers machines that have not booted, for orders to them.
    pub(crate) fn add_machines(&self, machines: impl IntoIterator<Item = (NodeId, MacAddr)>) {
        self.state.lock().machines.extend(machines);
    }

    /// Returns the machine of an ID that no node has.
    pub(crate) fn machine(&self, id: NodeId) -> Option<MacAddr> {
        self.state.lock().machines.get(&id).copied()
    }

    /// Whether the wall clock jumped since the last call. True at the first call: the time in which
    /// meshd did not run is unknown.
    pub(crate) fn has_clock_jumped(&self, now: Timestamp) -> bool {
        let monotonic = self.env.monotonic();
        let last = self.state.lock().clocks.replace((now, monotonic));
        last.is_none_or(|(wall, at)| {
            now.distance(wall).abs_diff(monotonic.saturating_sub(at)) > CLOCK_JUMP
        })
    }

    /// Whether the bounds that hold for all BMCs admit a request now.
    pub(crate) fn admits(&self, request: BmcRequest) -> bool {
        let bounds = self.bounds();
        self.state.lock().admits(&bounds, request)
    }

    fn bounds(&self) -> Bounds {
        let power = &self.env.site().power;
        let max_requests = power.max_requests;
        let stagger = power.stagger;
        Bounds { max_requests, stagger, now: self.env.monotonic() }
    }

    /// Takes a permit for a request, if the bounds admit it now.
    pub(crate) fn try_permit(
        self: &Arc<Self>,
        bmc: &ResolvedBmc,
        request: BmcRequest,
    ) -> Option<RequestPermit> {
        let bounds = self.bounds();
        let now = bounds.now;
        let mut state = self.state.lock();
        state.last_request.retain(|_, last| now.saturating_sub(*last) < REQUEST_INTERVAL);
        let is_refused = !state.admits(&bounds, request)
            || state.busy.contains(&bmc.key)
            || state.last_request.contains_key(&bmc.key);
        if is_refused {
            return None;
        }
        if request.starts_machine() {
            state.last_start = Some(now);
        }
        state.busy.insert(bmc.key.clone());
        Some(RequestPermit { bmcs: self.clone(), key: bmc.key.clone() })
    }

    /// Marks an order as under way; `None` if it is already.
    pub(crate) fn mark_in_flight(
        self: &Arc<Self>,
        order: (OperationId, NodeId),
    ) -> Option<InFlight> {
        let is_new = self.state.lock().in_flight.insert(order);
        is_new.then(|| InFlight { bmcs: self.clone(), order })
    }

    /// Whether the request of an order is under way in this process.
    pub(crate) fn is_in_flight(&self, operation: OperationId, node: NodeId) -> bool {
        self.state.lock().in_flight.contains(&(operation, node))
    }

    /// Sends a permitted request.
    pub(crate) async fn send(
        self: &Arc<Self>,
        permit: RequestPermit,
        bmc: &ResolvedBmc,
        request: BmcRequest,
    ) -> BmcResult {
        self.call(permit, bmc, move |bmc| async move { bmc.send(request).await }).await
    }

    /// Calls a BMC with its password, unless the BMC refused the password a moment ago. The call
    /// goes to its end if nobody waits for it: a login whose answer is unknown is sent rarely.
    async fn call<T, F>(
        self: &Arc<Self>,
        permit: RequestPermit,
        resolved: &ResolvedBmc,
        call: impl FnOnce(Bmc) -> F + Send + 'static,
    ) -> Result<T, BmcFailure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, BmcFailure>> + Send,
    {
        let this = self.clone();
        let resolved = resolved.clone();
        let called = tokio::spawn(async move {
            let bmc = resolved.with_password(this.env.site().power.timeout).await;
            let bmc = bmc.map_err(|error| BmcFailure::Credentials(error.to_string()))?;
            let login = this.begin_login(&resolved, &bmc).await?;
            let result = call(bmc).await;
            if let Some(login) = login {
                this.end_login(login, result.as_ref().err()).await;
            }
            drop(permit);
            result
        });
        // The only other ends are a panic, which the task has logged, and the end of meshd.
        called.await.unwrap_or_else(|error| Err(BmcFailure::Failed(error.to_string())))
    }

    /// Waits for a permit, and sends a request.
    pub(crate) async fn send_when_permitted(
        self: &Arc<Self>,
        bmc: &ResolvedBmc,
        request: BmcRequest,
    ) -> BmcResult {
        let permit = self.wait_for_permit(bmc, request).await?;
        self.send(permit, bmc, request).await
    }

    /// Waits for a permit, and asks for a report.
    pub(crate) async fn report_when_permitted(
        self: &Arc<Self>,
        bmc: &ResolvedBmc,
        kind: ReportKind,
    ) -> Result<Vec<ReportRow>, BmcFailure> {
        let permit = self.wait_for_permit(bmc, BmcRequest::Status).await?;
        let most = self.env.site().power.timeout * REPORT_TIMEOUTS;
        self.call(permit, bmc, move |bmc| async move {
            let report = tokio::time::timeout(most, bmc.report(kind)).await;
            let late = || Err(BmcFailure::Failed("its report takes too long".to_owned()));
            report.unwrap_or_else(|_| late())
        })
        .await
    }

    async fn wait_for_permit(
        self: &Arc<Self>,
        bmc: &ResolvedBmc,
        request: BmcRequest,
    ) -> Result<RequestPermit, BmcFailure> {
        let deadline = Instant::now() + self.env.site().power.timeout;
        loop {
            // Questions of people leave a part of the permits to orders.
            let most = (self.env.site().power.max_requests * 3 / 4).max(1);
            let has_room = self.state.lock().busy.len() < most;
            if has_room && let Some(permit) = self.try_permit(bmc, request) {
                return Ok(permit);
            }
            if Instant::now() >= deadline {
                return Err(BmcFailure::Failed("too many requests to BMCs wait".to_owned()));
            }
            tokio::time::sleep(PERMIT_PAUSE).await;
        }
    }
}
