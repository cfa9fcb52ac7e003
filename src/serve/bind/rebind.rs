//! Binds handles again when their interface was made again, or has another address.
//!
//! The kernel binds a handle to the index of an interface, not to its name. A handle of a deleted
//! interface receives nothing and reports no error, although a new interface has the same name and
//! address. Each service therefore compares the interface with the one that it was bound to, and
//! replaces its handles when they differ.

use super::{self as bind, BindError, Service};
use crate::lan::InterfaceTable;
use meshd_types::MacAddr;
use std::{
    fmt::Display,
    future::Future,
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

/// Interval of comparisons. A comparison asks the netlink socket for notifications, and reads the
/// interfaces only after one.
const INTERVAL: Duration = Duration::from_millis(250);

/// The interface to which handles are bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundTo {
    /// 0 if the interface did not exist, or if no handle is bound.
    pub index: u32,
    /// This server's address for clients of the interface.
    pub address: Ipv4Addr,
}

/// Follows one interface by its name.
#[derive(Clone)]
pub struct InterfaceWatch {
    name: String,
    /// Address of site.toml; otherwise the interface's own.
    configured: Option<Ipv4Addr>,
    table: Arc<InterfaceTable>,
}

impl InterfaceWatch {
    /// Follows an interface whose server address is `configured`, or else its first address.
    pub fn new(name: &str, configured: Option<Ipv4Addr>) -> Self {
        InterfaceWatch { name: name.to_owned(), configured, table: Arc::default() }
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what handles are bound to that are opened now with this address.
    pub fn bound(&self, address: Ipv4Addr) -> BoundTo {
        let table = self.table.read().ok();
        BoundTo {
            index: table
                .and_then(|table| table.get(&self.name).map(|it| it.index))
                .unwrap_or_default(),
            address,
        }
    }

    /// Returns the interface as it is now; `None` while it is absent or has no address. The address
    /// of handles stays as long as the interface has it.
    pub fn current(&self, bound: BoundTo) -> Option<BoundTo> {
        let table = self.table.read().ok()?;
        let interface = table.get(&self.name)?;
        let mut own = interface.addresses.iter().map(|(address, _)| *address);
        let kept = own.clone().find(|address| *address == bound.address);
        let address = self.configured.or(kept).or_else(|| own.next())?;
        Some(BoundTo { index: interface.index, address })
    }

    /// Returns the current interface if handles must be bound again.
    pub fn change_since(&self, bound: BoundTo) -> Option<BoundTo> {
        self.current(bound).filter(|current| *current != bound)
    }

    /// Returns the Ethernet address of the interface.
    pub fn mac(&self) -> Option<MacAddr> {
        self.table.read().ok()?.get(&self.name)?.mac
    }

    /// Resolves when handles must be bound again.
    async fn changed(&self, bound: BoundTo) -> BoundTo {
        loop {
            sleep(INTERVAL).await;
            if let Some(current) = self.change_since(bound) {
                return current;
            }
        }
    }
}

/// Handles of one interface, and how to open them again.
pub struct Rebinding<T, O> {
    /// The interface of the handles.
    pub watch: InterfaceWatch,
    /// What `handles` are bound to.
    pub bound: BoundTo,
    /// The first handles.
    pub handles: T,
    /// Opens all handles at an address.
    pub open: O,
}

impl<T, E: Display, O: Fn(Ipv4Addr) -> Result<T, E>> Rebinding<T, O> {
    /// Serves until `shutdown` or until `serve` ends. After a change of the interface, `serve` is
    /// stopped and started with new handles.
    ///
    /// # Errors
    /// The error of `serve`.
    pub async fn serve<F, R>(
        self,
        serve: impl Fn(T, CancellationToken) -> F,
        shutdown: CancellationToken,
    ) -> Result<(), R>
    where
        F: Future<Output = Result<(), R>> + Send + 'static,
        R: Send + 'static,
    {
        let Rebinding { watch, mut bound, mut handles, open } = self;
        let mut former = JoinSet::new();
        let outcome = loop {
            let stop = shutdown.child_token();
            let mut serving = Box::pin(serve(handles, stop.clone()));
            bound = tokio::select! {
                ended = serving.as_mut() => break ended,
                current = watch.changed(bound) => current,
            };
            stop.cancel();
            // New clients do not wait for the end of connections that the old interface took along.
            former.spawn(serving);
            while former.try_join_next().is_some() {}
            let Some(opened) = shutdown.run_until_cancelled(opened(&watch, bound, &open)).await
            else {
                break Ok(());
            };
            (handles, bound) = opened;
        };
        while former.join_next().await.is_some() {}
        outcome
    }
}

/// Opens handles, and repeats it until it succeeds: a new interface gets its address and its link
/// state one after the other.
async fn opened<T, E: Display>(
    watch: &InterfaceWatch,
    mut bound: BoundTo,
    open: impl Fn(Ipv4Addr) -> Result<T, E>,
) -> (T, BoundTo) {
    let mut logged = String::new();
    loop {
        match open(bound.address) {
            Ok(handles) => {
                tracing::warn!(
                    interface = watch.name(),
                    address = %bound.address,
                    "the interface was made again, or has another address: its services are bound again"
                );
                return (handles, bound);
            }
            Err(error) => {
                let error = error.to_string();
                if error != logged {
                    tracing::warn!(
                        interface = watch.name(),
                        error,
                        "cannot bind services again; retrying"
                    );
                    logged = error;
                }
            }
        }
        sleep(INTERVAL).await;
        bound = watch.current(bound).unwrap_or(bound);
    }
}

/// A TCP listener that is opened again with its interface.
pub struct WatchedListener {
    listener: TcpListener,
    service: Service,
    /// `None`: it listens on every interface.
    interface: Option<String>,
    at: SocketAddrV4,
    bound: BoundTo,
}

impl WatchedListener {
    /// Listens on a TCP port as [`bind::tcp`].
    ///
    /// # Errors
    /// As [`bind::tcp`].
    pub fn bind(
        service: Service,
        interface: Option<String>,
        at: SocketAddrV4,
    ) -> Result<Self, BindError> {
        let watch = interface.as_deref().map(|name| InterfaceWatch::new(name, Some(*at.ip())));
        let bound =
            watch.map_or(BoundTo { index: 0, address: *at.ip() }, |watch| watch.bound(*at.ip()));
        let listener = bind::tcp(service, interface.as_deref(), at)?;
        Ok(WatchedListener { listener, service, interface, at, bound })
    }

    /// Serves until `shutdown` or until `serve` ends.
    pub async fn serve<F>(
        self,
        serve: impl Fn(TcpListener, CancellationToken) -> F,
        shutdown: CancellationToken,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let WatchedListener { listener, service, interface, at, bound } = self;
        let Some(name) = interface else { return serve(listener, shutdown).await };
        let open = |address| bind::tcp(service, Some(&name), SocketAddrV4::new(address, at.port()));
        let watch = InterfaceWatch::new(&name, Some(*at.ip()));
        let serve = |listener, stop| {
            let serving = serve(listener, stop);
            async {
                serving.await;
                Ok::<(), std::convert::Infallible>(())
            }
        };
        let Ok(()) =
            Rebinding { watch, bound, handles: listener, open }.serve(serve, shutdown).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_with_another_index_or_address_is_a_change() {
        let own = InterfaceWatch::new("lo", None);
        let bound = own.bound(Ipv4Addr::LOCALHOST);
        assert!(bound.index > 0 && own.change_since(bound).is_none());
        assert_eq!(
            own.change_since(BoundTo { index: 0, ..bound }),
            Some(bound),
            "it was made again"
        );
        let former = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(
            own.change_since(BoundTo { address: former, ..bound }),
            Some(bound),
            "it has another address"
        );
        let configured = InterfaceWatch::new("lo", Some(former));
        assert_eq!(
            configured.change_since(BoundTo { address: former, ..bound }),
            None,
            "site.toml names the address"
        );
        assert_eq!(InterfaceWatch::new("nosuch0", None).change_since(bound), None, "it is absent");
    }
}
