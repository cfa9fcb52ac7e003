//! Error responses: status, code, message, hint and correlation ID.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header::WWW_AUTHENTICATE},
    response::{IntoResponse, Response},
};
use meshd_api::ErrorView;
use meshd_builder::VolumeError;
use meshd_central::{
    ApiTokenError, BmcError, BulkError, CancelError, CompareError, ContainerError, LinkError,
    NamingError, OperateError, OrderError, RenderError, RollbackError, RolloutError,
    RunningWorkError, SlotError, TaskError, VmError, VolumeUseError,
};
use meshd_model::fleet::{AuditOutcome, NodeSearchError};
use meshd_store::StoreError;
use meshd_trust::Role;
use meshd_types::{CorrelationId, Hint, ParseError};
use std::{sync::Arc, time::Duration};

/// Reason why a request is refused.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    status: StatusCode,
    code: &'static str,
    message: String,
    hint: String,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Refused { status, code, message: message.into(), hint: String::new() }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Returns the response to an error, with all its sources.
    pub(crate) fn of(status: StatusCode, code: &'static str, error: &impl Hint) -> Self {
        let hint = error.hint().unwrap_or_default();
        Refused { status, code, message: error.message(), hint }
    }

    /// Returns the response to a value that cannot be parsed.
    pub(crate) fn unreadable(error: &impl Hint) -> Self {
        Self::of(StatusCode::BAD_REQUEST, "bad_request", error)
    }

    /// Returns the response to an ID that cannot be parsed, so that nothing has it.
    pub(crate) fn unknown(error: &ParseError) -> Self {
        Self::of(StatusCode::NOT_FOUND, "not_found", error)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// Returns the error for a body that is not declared as JSON.
    pub(crate) fn media_type() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "bad_media_type",
            "the body is not declared as JSON",
        )
        .with_hint("send the header `Content-Type: application/json`")
    }

    /// Returns the error for a body that exceeds the limit.
    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the body is too long")
            .with_hint(format!("send at most {limit} bytes"))
    }

    /// Returns the error for a request with a precondition. Lists have entity tags, but the objects
    /// of orders have none: executing the order regardless would ignore the condition (RFC 9110,
    /// 13.2.1).
    pub(crate) fn precondition(name: &str) -> Self {
        let message = format!("cannot evaluate the header {name}: this resource has no entity tag");
        Self::new(StatusCode::PRECONDITION_FAILED, "no_precondition", message)
            .with_hint("omit the header, or send the `revision` of the nodes to /v1/bulk/nodes")
    }

    /// Returns the error for a text response of the framework, such as that for an invalid path.
    pub(crate) fn rejection(status: StatusCode, text: &str) -> Self {
        let code = match status {
            StatusCode::PAYLOAD_TOO_LARGE => "too_large",
            StatusCode::UPGRADE_REQUIRED => "upgrade_required",
            status if status.is_server_error() => "internal",
            _ => "bad_request",
        };
        let text = text.trim();
        let text = if text.is_empty() {
            status.canonical_reason().unwrap_or("the request is invalid")
        } else {
            text
        };
        Self::new(status, code, text)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let hint = "this is a fault of meshd, its log says where".to_owned();
        Refused {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            code: "internal",
            message: message.into(),
            hint,
        }
    }

    pub(crate) fn unauthorized(message: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    /// Returns the error for a valid token whose role does not permit the request.
    pub(crate) fn insufficient_role(role: Role, needed: Role) -> Self {
        let message = format!("a token with role {role} may not do this");
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
            .with_hint(format!("it takes role {needed}"))
    }

    pub(crate) fn too_many(window: Duration) -> Self {
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too_many",
            "too many refused requests from your address",
        )
        .with_hint(format!("wait {} s", window.as_secs()))
    }

    pub(crate) fn outcome(&self) -> AuditOutcome {
        let code = self.code.to_owned();
        if self.status.is_server_error() {
            AuditOutcome::Failed(code)
        } else {
            AuditOutcome::Refused(code)
        }
    }

    pub(crate) fn sentence(&self) -> &str {
        &self.message
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        let (status, code) = STORE;
        Refused::of(status, code, &error)
    }
}

fn operate(error: &OperateError) -> (StatusCode, &'static str) {
    match error {
        OperateError::NoNode { .. } => (StatusCode::NOT_FOUND, "no_node"),
        OperateError::Search(NodeSearchError::Missing { .. }) => (StatusCode::NOT_FOUND, "no_node"),
        OperateError::Search(NodeSearchError::Ambiguous { .. }) => {
            (StatusCode::CONFLICT, "ambiguous")
        }
        OperateError::SameNode { .. } => (StatusCode::CONFLICT, "same_node"),
        OperateError::NicTaken { .. } => (StatusCode::CONFLICT, "nic_taken"),
        OperateError::NotSilent { .. } => (StatusCode::CONFLICT, "still_heard"),
        OperateError::NoProfile { .. } => (StatusCode::CONFLICT, "no_profile"),
        OperateError::Order(OrderError::ForbiddenArg { .. }) => {
            (StatusCode::FORBIDDEN, "forbidden")
        }
        OperateError::Order(_) => (StatusCode::CONFLICT, "bad_order"),
        OperateError::Naming(
            NamingError::InvalidName { .. } | NamingError::ReservedName { .. },
        ) => (StatusCode::BAD_REQUEST, "bad_request"),
        OperateError::Naming(NamingError::NameTaken { .. } | NamingError::NameExpected { .. }) => {
            (StatusCode::CONFLICT, "name_taken")
        }
        OperateError::Naming(NamingError::TooManyLabels { .. }) => {
            (StatusCode::CONFLICT, "too_many_labels")
        }
        OperateError::Render(_) => (StatusCode::CONFLICT, "render_failed"),
        OperateError::RunningWork(error) => running_work(error),
        OperateError::Link(error) => link(error),
        OperateError::Unlawful(_) => (StatusCode::CONFLICT, "unlawful"),
        OperateError::Busy { .. } => (StatusCode::CONFLICT, "node_busy"),
        OperateError::TooManyOrders { .. } => (StatusCode::CONFLICT, "too_many_orders"),
        OperateError::Unfinished { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "unfinished"),
        OperateError::Cancelled { .. } => (StatusCode::CONFLICT, "cancelled"),
        OperateError::ActionFailed { .. } => (StatusCode::BAD_GATEWAY, "action_failed"),
        OperateError::Unprepared { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "unprepared"),
        OperateError::Bmc(BmcError::Password { .. }) => (StatusCode::CONFLICT, "bmc_password"),
        OperateError::Bmc(BmcError::Report { .. }) => (StatusCode::CONFLICT, "bmc_report"),
        OperateError::Bmc(_) => (StatusCode::CONFLICT, "no_bmc"),
        OperateError::Store(_) => STORE,
    }
}

impl From<BulkError> for Refused {
    fn from(error: BulkError) -> Self {
        let (status, code) = match error {
            BulkError::Count { .. } => (StatusCode::BAD_REQUEST, "bad_request"),
            BulkError::Changed { .. } => (StatusCode::CONFLICT, "changed_since"),
            BulkError::Operate(error) => return error.into(),
            BulkError::Store(_) => STORE,
        };
        Refused::of(status, code, &error)
    }
}

/// Status and code of a failed write to the store.
const STORE: (StatusCode, &str) = (StatusCode::INTERNAL_SERVER_ERROR, "store");

fn running_work(error: &RunningWorkError) -> (StatusCode, &'static str) {
    match error {
        RunningWorkError::Vms { .. } => (StatusCode::CONFLICT, "holds_vms"),
        RunningWorkError::Containers { .. } => (StatusCode::CONFLICT, "holds_containers"),
        RunningWorkError::Task { .. } => (StatusCode::CONFLICT, "node_in_use"),
        RunningWorkError::Slots { .. } => (StatusCode::CONFLICT, "holds_slots"),
    }
}

fn link(error: &LinkError) -> (StatusCode, &'static str) {
    match error {
        LinkError::StillLinked { .. } => (StatusCode::CONFLICT, "still_linked"),
        LinkError::NotLinked { .. } => (StatusCode::CONFLICT, "not_linked"),
        LinkError::NoAnswer { .. } => (StatusCode::GATEWAY_TIMEOUT, "no_answer"),
    }
}

fn task(error: &TaskError) -> (StatusCode, &'static str) {
    match error {
        TaskError::None { .. } => (StatusCode::NOT_FOUND, "no_task"),
        TaskError::Spec(_) => (StatusCode::BAD_REQUEST, "bad_task"),
        TaskError::RootForbidden => (StatusCode::FORBIDDEN, "root_forbidden"),
        TaskError::NoGroup { .. } => (StatusCode::NOT_FOUND, "no_group"),
        TaskError::NotEnough { .. } => (StatusCode::CONFLICT, "not_enough_nodes"),
        TaskError::NotFree { .. } => (StatusCode::CONFLICT, "node_not_free"),
        TaskError::Output(_) => (StatusCode::INTERNAL_SERVER_ERROR, "output"),
        TaskError::Store(_) => STORE,
    }
}

fn cancel(error: &CancelError) -> (StatusCode, &'static str) {
    match error {
        CancelError::Unknown(_) => (StatusCode::NOT_FOUND, "no_operation"),
        CancelError::Started(_) => (StatusCode::CONFLICT, "started"),
        CancelError::Store(_) => STORE,
    }
}

fn rollout(error: &RolloutError) -> (StatusCode, &'static str) {
    match error {
        RolloutError::Unknown(_) => (StatusCode::NOT_FOUND, "no_rollout"),
        RolloutError::UnknownBisection(_) => (StatusCode::NOT_FOUND, "no_bisection"),
        RolloutError::BisectionOverlap(_) => (StatusCode::CONFLICT, "bisection_overlap"),
        RolloutError::BisectionState { .. } => (StatusCode::CONFLICT, "bisection_state"),
        RolloutError::NoGroup { .. } => (StatusCode::NOT_FOUND, "no_group"),
        RolloutError::NoProgram { .. } => (StatusCode::NOT_FOUND, "no_program"),
        RolloutError::NoNodes | RolloutError::TooManyNodes { .. } | RolloutError::Policy(_) => {
            (StatusCode::BAD_REQUEST, "bad_request")
        }
        RolloutError::Floor(_) => (StatusCode::CONFLICT, "floor"),
        RolloutError::Overlap { .. } => (StatusCode::CONFLICT, "rollout_overlap"),
        RolloutError::TooMany { .. } => (StatusCode::CONFLICT, "too_many_rollouts"),
        RolloutError::AllAtOnce { .. } => (StatusCode::CONFLICT, "all_at_once"),
        RolloutError::State { .. } | RolloutError::NothingToUndo(_) => {
            (StatusCode::CONFLICT, "rollout_state")
        }
        RolloutError::Operate(error) => operate(error),
        RolloutError::Store(_) => STORE,
    }
}

fn api_token(error: &ApiTokenError) -> (StatusCode, &'static str) {
    match error {
        ApiTokenError::None(_) => (StatusCode::NOT_FOUND, "no_token"),
        ApiTokenError::Store(_) => STORE,
        _ => (StatusCode::CONFLICT, "bad_token"),
    }
}

fn comparison(_: &CompareError) -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "no_generation")
}

fn rollback(error: &RollbackError) -> (StatusCode, &'static str) {
    match error {
        RollbackError::RunningWork(error) => running_work(error),
        RollbackError::Render(_) => (StatusCode::CONFLICT, "render_failed"),
        RollbackError::Store(_) => STORE,
        _ => (StatusCode::CONFLICT, "no_rollback"),
    }
}

fn slot(error: &SlotError) -> (StatusCode, &'static str) {
    match error {
        SlotError::None(_) => (StatusCode::NOT_FOUND, "no_slot"),
        SlotError::Vm(error) => vm(error),
        SlotError::Store(_) => STORE,
        _ => (StatusCode::CONFLICT, "bad_slot"),
    }
}

macro_rules! refused {
    ($($error:ident: $status:ident;)+) => {$(
        impl From<$error> for Refused {
            fn from(error: $error) -> Self {
                let (status, code) = $status(&error);
                Refused::of(status, code, &error)
            }
        }
    )+};
}

refused! {
    OperateError: operate;
    ApiTokenError: api_token;
    TaskError: task;
    LinkError: link;
    CompareError: comparison;
    CancelError: cancel;
    RolloutError: rollout;
    RollbackError: rollback;
    SlotError: slot;
    VmError: vm;
    ContainerError: container;
}

fn container(error: &ContainerError) -> (StatusCode, &'static str) {
    match error {
        ContainerError::None(_) => (StatusCode::NOT_FOUND, "no_container"),
        ContainerError::NameTaken(_) => (StatusCode::CONFLICT, "container_exists"),
        ContainerError::TooMany => (StatusCode::CONFLICT, "too_many_containers"),
        ContainerError::ReplicaName(_)
        | ContainerError::Unsound { .. }
        | ContainerError::Replicas { .. } => (StatusCode::BAD_REQUEST, "bad_container"),
        ContainerError::NoImage { .. } => (StatusCode::CONFLICT, "no_image"),
        ContainerError::NoFiles { .. } => (StatusCode::CONFLICT, "no_files"),
        ContainerError::Elsewhere { .. } => (StatusCode::CONFLICT, "elsewhere"),
        ContainerError::NoPlacement(_) => (StatusCode::CONFLICT, "no_placement"),
        ContainerError::Releasing(_) => (StatusCode::CONFLICT, "releasing"),
        ContainerError::Volume(VolumeUseError::Files(VolumeError::None(_))) => {
            (StatusCode::NOT_FOUND, "no_volume")
        }
        ContainerError::Volume(_) => (StatusCode::INTERNAL_SERVER_ERROR, "volumes"),
        ContainerError::Store(_) => STORE,
    }
}

/// Returns status and code of a VM error. A reason against a placement has a separate code, so that
/// programs can retry.
fn vm(error: &VmError) -> (StatusCode, &'static str) {
    match error {
        VmError::None(_) => (StatusCode::NOT_FOUND, "no_vm"),
        VmError::NameTaken { .. } | VmError::UuidTaken { .. } => {
            (StatusCode::CONFLICT, "vm_exists")
        }
        VmError::TooMany => (StatusCode::CONFLICT, "too_many_vms"),
        VmError::Unsound(_) => (StatusCode::BAD_REQUEST, "bad_vm"),
        VmError::Nics(_) => (StatusCode::CONFLICT, "card_taken"),
        VmError::NoPlacement(unfit) => (StatusCode::CONFLICT, unfit.verdict.as_str()),
        VmError::Releasing(_) => (StatusCode::CONFLICT, "releasing"),
        VmError::NotInService { .. } => (StatusCode::CONFLICT, "not_ready"),
        VmError::SlotClosed { .. } => (StatusCode::CONFLICT, "slot_closed"),
        VmError::Elsewhere { .. } => (StatusCode::CONFLICT, "vm_elsewhere"),
        VmError::NoVolume { .. } => (StatusCode::CONFLICT, "volume_missing"),
        VmError::NoNode(_) => (StatusCode::NOT_FOUND, "no_node"),
        VmError::Store(_) => STORE,
    }
}

impl From<Arc<RenderError>> for Refused {
    fn from(error: Arc<RenderError>) -> Self {
        Refused::of(StatusCode::CONFLICT, "render_failed", &*error)
    }
}

impl Refused {
    pub(crate) fn view(&self, correlation: CorrelationId) -> ErrorView {
        let code = self.code.to_owned();
        let message = self.message.clone();
        let hint = self.hint.clone();
        ErrorView { code, message, hint, correlation_id: correlation.to_string() }
    }

    /// Returns the response body, which is also stored for requests that repeat the idempotency
    /// key.
    pub(crate) fn to_json(&self, correlation: CorrelationId) -> String {
        serde_json::to_string(&self.view(correlation)).expect("it is plain data")
    }

    /// Returns the response. The correlation ID is in the log lines too.
    pub(crate) fn answer(self, correlation: CorrelationId) -> Response {
        let view = self.view(correlation);
        let Refused { status, code, message, .. } = self;
        if status.is_server_error() {
            tracing::error!(code, message, "admin request failed");
        } else {
            tracing::info!(code, message, "admin request refused");
        }
        let mut response = (status, Json(view)).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Only attaches the error: `authorise_and_audit::with_correlation_id` converts it to a response,
/// with the correlation ID.
impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_model::work::SlotState;

    #[test]
    fn reason_of_an_operator_with_a_semicolon_is_not_taken_for_a_hint() {
        let id = "38y4a8ck/0000:41:00.0".parse().expect("a slot");
        let reason = "fan broken; ask Ada; ticket 7".to_owned();
        let error =
            SlotError::Unlawful { id, state: SlotState::Disabled, reason, hint: "enable it first" };
        let refused = Refused::from(error);
        assert!(refused.message.ends_with("fan broken; ask Ada; ticket 7"), "{}", refused.message);
        assert_eq!(refused.hint, "enable it first");
    }

    #[test]
    fn text_that_cannot_be_parsed_stays_whole() {
        let error = "a; b".parse::<meshd_types::SystemUuid>().expect_err("not a UUID");
        let refused = Refused::unreadable(&error);
        assert_eq!(refused.message, "`a; b` is not a UUID");
        assert!(refused.hint.starts_with("write it as"), "{}", refused.hint);
    }

    #[test]
    fn hint_at_the_end_of_a_source_is_not_repeated() {
        let error =
            OperateError::Order(OrderError::NotArchived(meshd_store::ArchiveError::Missing {
                generation: "ab12".to_owned(),
            }));
        let refused = Refused::from(error);
        assert_eq!(refused.message, "generation ab12 is not archived");
        assert!(refused.hint.contains("meshd node history"), "{}", refused.hint);
    }
}
