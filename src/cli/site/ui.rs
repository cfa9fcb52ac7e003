//! `meshd ui`: serves the web UI at a loopback address, and prints a link that signs in once.

use crate::cli::{Context, Failure, client::AdminClient, output::print::write, wait};
use axum::{
    Json, Router,
    body::Body,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use clap::Args;
use meshd_api::{ErrorView, routes as api};
use meshd_ui::{Environment, LinkCode, OpenSocket, PREFIX, SignIn};
use std::{net::Ipv4Addr, sync::Arc, time::Instant};
use tokio::net::TcpListener;

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
            // The call precedes the link, so that a caller without access gets an error and no link.
            client.get(api::GET_CALLER.path([])).await?;
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).await;
            let busy =
                |error| Failure::new(format!("cannot listen on port {}: {error}", self.port), "use another --port");
            let listener = listener.map_err(busy)?;
            let address = listener.local_addr()?;
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
            tokio::select! {
                served = axum::serve(listener, router).into_future() => served.map_err(Failure::from),
                stopped = tokio::signal::ctrl_c() => stopped.map_err(Failure::from),
            }
        })
    }
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
            let opened = client.socket(request.uri().path()).await;
            opened.map_err(|failure| (StatusCode::BAD_GATEWAY, view(&failure)))
        })
    })
}

fn unreachable(failure: &Failure) -> Response {
    (StatusCode::BAD_GATEWAY, Json(view(failure))).into_response()
}

fn view(failure: &Failure) -> ErrorView {
    let (message, hint) = failure.parts();
    let (code, correlation_id) = ("unreachable".to_owned(), String::new());
    ErrorView { code, message: message.to_owned(), hint: hint.to_owned(), correlation_id }
}
