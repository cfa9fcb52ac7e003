//! Web UI: HTML pages over the admin API, rendered on the server.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `assets` | style sheet and script |
//! | `client` | calls the admin API in the name of whoever is signed in |
//! | `console` | interactive consoles of virtual machines |
//! | `form` | fields of a submitted form |
//! | `gate` | what comes before every page: origin, session, security headers |
//! | `html` | the frame of a page and its parts: tables, badges, times |
//! | `plain_text` | output of programs as plain text |
//! | `screens` | the pages |
//! | `session` | who is signed in |
//!
//! The UI knows the admin API alone. It asks it in the name of its user, so a page shows and an action does what that user may see and
//! do, and the audit log names the user. It runs in two places: in meshd, beside the API of `[admin.https]`, where people sign in with
//! an API token; and in `meshd ui`, on a loopback address, where a link signs in once.

mod assets;
mod client;
mod console;
mod form;
mod gate;
mod html;
mod plain_text;
mod screens;
mod session;

#[cfg(test)]
mod tests;

pub use console::{OpenSocket, Opening, SocketRefusal};
pub use session::{LinkCode, SignIn};

use axum::Router;
use std::time::Instant;

/// Where the pages are.
pub const PREFIX: &str = "/ui";

/// What the UI needs from whoever runs it.
#[derive(Clone)]
pub struct Environment {
    /// Answers requests for `/v1`.
    pub api: Router,
    /// Opens WebSockets of the same API.
    pub open_socket: OpenSocket,
    /// How people sign in.
    pub sign_in: SignIn,
    /// 32 random bytes.
    pub random: fn() -> [u8; 32],
    pub now: fn() -> Instant,
}

/// The pages, and the API beside them: whatever is not below [`PREFIX`] goes to the API.
pub fn router(environment: Environment) -> Router {
    gate::router(environment)
}
