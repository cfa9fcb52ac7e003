//! Interactive consoles of VMs, and shells of nodes, guests and containers. A terminal emulator on the central node keeps the screen, so a page
//! that opens late shows the screen at once.
//!
//! | module | content |
//! | --- | --- |
//! | `console_target` | what a console is connected to |
//! | `terminal_screen` | the screen of an emulated terminal as HTML |
//! | `open_consoles` | open consoles by session and VM |
//! | `repeat_filter` | bounds the counts of a control sequence that is expensive to emulate |
//!
//! A console is one WebSocket of the admin API, opened on behalf of the user. The browser polls the
//! screen and posts the user's input.

mod console_target;
mod open_consoles;
mod repeat_filter;
mod terminal_screen;

pub(crate) use console_target::ConsoleTarget;
pub(crate) use open_consoles::{Console, Consoles};

use axum::http::{Extensions, Request};
use meshd_api::ErrorView;
use meshd_client::Socket;
use std::{pin::Pin, sync::Arc};

/// Reason why a WebSocket was not opened: status and body of the response.
pub type SocketRefusal = (axum::http::StatusCode, ErrorView);
/// A WebSocket that is being opened.
pub type Opening = Pin<Box<dyn Future<Output = Result<Socket, SocketRefusal>> + Send>>;
/// Opens a WebSocket of the admin API. The arguments are a request with its path and the caller's
/// headers, and the origin data of the browser's connection.
pub type OpenSocket = Arc<dyn Fn(Request<()>, Extensions) -> Opening + Send + Sync>;
