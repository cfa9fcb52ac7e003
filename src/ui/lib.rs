//! Web UI: HTML pages over the admin API, rendered on the server.
//!
//! | module | content |
//! | --- | --- |
//! | `assets` | style sheet and script |
//! | `client` | calls the admin API on behalf of the signed-in user |
//! | `console` | interactive consoles of VMs |
//! | `form` | fields of a submitted form, and results of forms that are executed once |
//! | `request_checks` | checks that precede every page: origin, session, security headers |
//! | `html` | layout of a page, and its parts: tables, badges, times |
//! | `names` | names of nodes, shown with their IDs |
//! | `plain_text` | output of programs as plain text |
//! | `screens` | the pages |
//! | `session` | sessions, and the single-use sign-in link |
//!
//! The UI uses only the admin API, on behalf of its user. The user's role therefore limits pages
//! and actions, and the audit log names the user. The UI runs in two places. In meshd, beside the
//! API of `[admin.https]`, users sign in with an API token. In `meshd ui`, on a loopback address,
//! users sign in with a single-use link.

mod assets;
mod client;
mod console;
mod form;
mod request_checks;
mod html;
mod names;
mod plain_text;
mod screens;
mod session;

#[cfg(test)]
mod tests;

pub use console::{OpenSocket, Opening, SocketRefusal};
pub use session::{LinkCode, SessionOrigin, SignIn};

use axum::Router;
use std::time::Instant;

/// Path prefix of the pages.
pub const PREFIX: &str = "/ui";

/// Dependencies that the hosting program provides to the UI.
#[derive(Clone)]
pub struct Environment {
    /// Router that answers requests for `/v1`.
    pub api: Router,
    /// Opens WebSockets of this API.
    pub open_socket: OpenSocket,
    /// Method of signing in.
    pub sign_in: SignIn,
    /// Returns 32 random bytes.
    pub random: fn() -> [u8; 32],
    pub now: fn() -> Instant,
}

/// Returns the pages together with the API: requests outside [`PREFIX`] go to the API.
pub fn router(environment: Environment) -> Router {
    request_checks::router(environment)
}
