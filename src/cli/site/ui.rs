//! `meshd ui`: serves the web UI at a loopback address, and prints a link that signs in once.

use crate::cli::{Context, Failure, client::AdminClient, output::print::write, wait};
use axum::{
    Json, Router,
    body::Body,
    extract::{ConnectInfo, Request, connect_info::Connected},
    http::{StatusCode, header::CONNECTION},
    middleware,
    response::{IntoResponse as _, Response},
    serve::{IncomingStream, Listener},
};
use clap::Args;
use meshd_api::{ErrorView, routes as api};
use meshd_serve::connections::lingering_close::{LingerLimits, LingeringClose, UnreadInput};
use meshd_types::failpoint;
use meshd_ui::{Environment, LinkCode, OpenSocket, PREFIX, SessionOrigin, SignIn};
use std::{
    collections::BTreeMap,
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};
use tokio::net::{TcpListener, TcpStream};

/// State of an established connection in `/proc/net/tcp`. The kernel shows connections that their
/// program has closed as those of root.
const ESTABLISHED: &str = "01";
/// Maximum number of connections of one user: another user of the machine must not use up the files
/// of this command.
const MAX_CONNECTIONS: usize = 64;
/// Answer to a request of an unknown user.
const UNKNOWN_USER: &str = "cannot find the user of this connection: the program closed it early\nhint: load the page again\n";

/// The browser has the rights of this command. Ctrl-C ends the command and all browser sessions.
#[derive(Debug, Args)]
pub(crate) struct Ui {
    /// Port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    port: u16,
}

impl Ui {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = Arc::new(context.client()?);
        wait(async {
            // The call precedes the link, so that a caller without access gets an error and no
            // link.
            client.get(api::GET_CALLER.path([])).await?;
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).await;
            let busy = |error| {
                Failure::new(
                    format!("cannot listen on port {}: {error}", self.port),
                    "use another --port",
                )
            };
            let listener = listener.map_err(busy)?;
            let address = listener.local_addr()?;
            let listener = UserListener { listener, counts: ConnectionCounts::default() };
            let (code, text) = LinkCode::new(random());
            write(&format!("http://{address}{PREFIX}/enter?code={}\n", text.expose()))?;
            message!("the link works once; the web UI ends with Ctrl-C");
            let router = meshd_ui::router(Environment {
                open_socket: open_socket(client.clone()),
                api: forward(client),
                sign_in: SignIn::Link(code),
                random,
                now: Instant::now,
            });
            let service = with_user(router).into_make_service_with_connect_info::<UserConnection>();
            tokio::select! {
                served = axum::serve(listener, service).into_future() => served.map_err(Failure::from),
                stopped = tokio::signal::ctrl_c() => stopped.map_err(Failure::from),
            }
        })
    }
}

/// Number of open connections of each user.
type ConnectionCounts = Arc<Mutex<BTreeMap<Option<u32>, usize>>>;

/// Accepts connections up to a limit for each user. Closes further ones.
struct UserListener {
    listener: TcpListener,
    counts: ConnectionCounts,
}

/// A connection of a user.
#[derive(Clone, Debug)]
struct UserConnection {
    /// User ID of the program that opened the connection. meshd reads it when it accepts the
    /// connection, because a browser may close the connection before meshd has answered; `None` if
    /// the program closed it even earlier.
    uid: Option<u32>,
    unread: UnreadInput,
    /// Counts until the last clone is dropped.
    _counted: Arc<CountedConnection>,
}

#[derive(Debug)]
struct CountedConnection {
    uid: Option<u32>,
    counts: ConnectionCounts,
}

impl CountedConnection {
    /// Counts a connection; `None` if its user has too many.
    fn open(uid: Option<u32>, counts: &ConnectionCounts) -> Option<Self> {
        let mut locked = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = locked.entry(uid).or_default();
        if *count >= MAX_CONNECTIONS && failpoint::defends("ui-connections") {
            return None;
        }
        *count += 1;
        Some(CountedConnection { uid, counts: Arc::clone(counts) })
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.uid);
            }
        }
    }
}

impl Listener for UserListener {
    type Io = LingeringClose<TcpStream>;
    type Addr = Option<UserConnection>;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, peer) = Listener::accept(&mut self.listener).await;
            let uid = stream.local_addr().ok().and_then(|local| user_of(peer, local));
            if let Some(counted) = CountedConnection::open(uid, &self.counts) {
                let (stream, unread) = LingeringClose::new(stream, LingerLimits::default());
                return (stream, Some(UserConnection { uid, unread, _counted: Arc::new(counted) }));
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(None)
    }
}

impl Connected<IncomingStream<'_, UserListener>> for UserConnection {
    fn connect_info(stream: IncomingStream<'_, UserListener>) -> Self {
        stream.remote_addr().clone().expect("every accepted connection has a user")
    }
}

/// Binds sessions to the user whose browser opened the link: a browser sends the cookie to every
/// port of 127.0.0.1, and so to programs of other users. A request of an unknown user is refused,
/// and neither ends a session nor uses up the link.
fn with_user(router: Router) -> Router {
    router.layer(middleware::map_request(
        async |ConnectInfo(connection): ConnectInfo<UserConnection>, request: Request| {
            let mut request = connection.unread.watch(request);
            // The next request of a browser needs a new connection.
            let unknown = (StatusCode::FORBIDDEN, [(CONNECTION, "close")], UNKNOWN_USER);
            let uid = connection.uid.ok_or_else(|| unknown.into_response())?;
            request.extensions_mut().insert(SessionOrigin::of_user(uid));
            Ok::<_, Response>(request)
        },
    ))
}

fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("getrandom(2) works on every Linux that meshd runs on");
    bytes
}

/// Forwards API requests to the central node.
fn forward(client: Arc<AdminClient>) -> Router {
    Router::new().fallback(async move |request: Request| match client.forward(request).await {
        Ok(response) => response.map(Body::new),
        Err(failure) => unreachable(&failure),
    })
}

/// Opens WebSockets to the central node.
fn open_socket(client: Arc<AdminClient>) -> OpenSocket {
    Arc::new(move |request, _| {
        let client = client.clone();
        Box::pin(async move {
            // The query has the terminal, and the program in a container.
            let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
            let opened = client.socket(path).await;
            opened.map_err(|failure| (StatusCode::BAD_GATEWAY, view(&failure)))
        })
    })
}

fn unreachable(failure: &Failure) -> Response {
    (StatusCode::BAD_GATEWAY, Json(view(failure))).into_response()
}

fn view(failure: &Failure) -> ErrorView {
    let (message, hint) = failure.parts();
    let code = "unreachable".to_owned();
    let correlation_id = String::new();
    ErrorView { code, message: message.to_owned(), hint: hint.to_owned(), correlation_id }
}

/// Returns the user ID of the program that connected from `peer` to `local`.
fn user_of(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    find(&fs::read_to_string("/proc/net/tcp").ok()?, &text(peer)?, &text(local)?)
}

fn find(table: &str, from: &str, to: &str) -> Option<u32> {
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut own = lines.filter(|words| words.get(1..4) == Some(&[from, to, ESTABLISHED]));
    own.next()?.get(7)?.parse().ok()
}

/// Returns an address as the kernel writes it: the bytes of the address as a number of this
/// machine, then the port.
fn text(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn user_of_a_loopback_connection_is_found_while_it_is_open() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        let local = stream.local_addr().unwrap();
        assert_eq!(user_of(peer, local), Some(rustix::process::geteuid().as_raw()));
        assert_eq!(user_of(local, local), None);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        drop(client);
        assert_eq!(user_of(peer, local), None, "closed connections are shown as those of root");
    }
}
