//! Interactive consoles of virtual machines. The central node's terminal emulator keeps the screen, so a page shows it at once, however
//! late it is opened.
//!
//! | module | content |
//! | --- | --- |
//! | `terminal_screen` | the screen of an emulated terminal as HTML |
//! | `open_consoles` | open consoles by session and virtual machine |
//! | `repeat_filter` | bounds the counts of a control sequence that is expensive to emulate |
//!
//! A console is one WebSocket of the admin API, opened in the name of its user. The browser polls the screen and posts what is typed.

mod open_consoles;
mod repeat_filter;
mod terminal_screen;

pub(crate) use open_consoles::{Console, Consoles};

use axum::http::{Extensions, Request};
use meshd_api::ErrorView;
use meshd_client::Socket;
use std::{pin::Pin, sync::Arc};

/// Why a WebSocket was not opened: status and body of the response.
pub type SocketRefusal = (axum::http::StatusCode, ErrorView);
/// A WebSocket that is being opened.
pub type Opening = Pin<Box<dyn Future<Output = Result<Socket, SocketRefusal>> + Send>>;
/// Opens a WebSocket of the admin API: a request with its path and the headers of the caller, and what the connection of the browser
/// says about its origin.
pub type OpenSocket = Arc<dyn Fn(Request<()>, Extensions) -> Opening + Send + Sync>;
