//! Shells of guests: a WebSocket for the role admin, as for shells of nodes.

use crate::admin::{
    ApiState,
    bind_handlers::Binder,
    error::Refused,
    extract::QueryOf,
    routes::nodes::shell::{ShellTarget, ShellUser, serve, shell_terminal},
};
use axum::{
    extract::{Path, State, WebSocketUpgrade, ws::rejection::WebSocketUpgradeRejection},
    http::StatusCode,
    response::Response,
};
use meshd_api::routes as api;
use meshd_central::{GuestShellError, GuestShellRequest};
use meshd_model::fleet::Verb;
use meshd_proto::shell::{GuestUser, TerminalName};
use serde::Deserialize;

pub(crate) fn bind(binder: Binder) -> Binder {
    binder.session(&api::OPEN_VM_SHELL, Verb::VmShell, shell)
}

impl From<GuestShellError> for Refused {
    fn from(error: GuestShellError) -> Self {
        let code = match error {
            GuestShellError::Forbidden => {
                return Refused::of(StatusCode::FORBIDDEN, "guest_shells_forbidden", &error);
            }
            GuestShellError::Vm(error) => return error.into(),
            GuestShellError::Connect(error) => return error.into(),
            GuestShellError::Store(error) => return error.into(),
            GuestShellError::Unplaced(_) => "unplaced",
            GuestShellError::NoCloudInit(_) => "no_cloud_init",
        };
        Refused::of(StatusCode::CONFLICT, code, &error)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GuestShellQuery {
    rows: Option<u16>,
    columns: Option<u16>,
    terminal: Option<TerminalName>,
    user: Option<GuestUser>,
    /// Trusts the host key that the guest shows now.
    forget_host_key: bool,
}

async fn shell(
    State(state): State<ApiState>,
    user: ShellUser,
    Path(vm): Path<String>,
    QueryOf(query): QueryOf<GuestShellQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refused> {
    state.central.vms.check_guest_shells()?;
    let vm = state.central.vms.resolve_vm(&vm)?;
    let request = GuestShellRequest {
        user: query.user,
        forget_host_key: query.forget_host_key,
        terminal: shell_terminal(query.rows, query.columns, query.terminal),
    };
    serve(state, user, ShellTarget::Guest(vm, request), upgrade).await
}
