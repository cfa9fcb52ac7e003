//! Middleware: correlation IDs, authorisation, idempotency and the audit log for each order.

use crate::admin::{
    ApiState, MAX_BODY, MAX_IMPORT,
    error::Refused,
    query::parameters::Parameters,
    transport::{caller::Caller, idempotency},
};
use axum::{
    body::{Body, to_bytes},
    extract::{FromRequestParts, RawPathParams, Request, State},
    handler::Handler,
    http::{
        HeaderMap, HeaderValue, Uri,
        header::{IF_MATCH, IF_NONE_MATCH},
        request::Parts,
    },
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, get, post},
};
use bytes::Bytes;
use http_body_util::LengthLimitError;
use meshd_api::{CORRELATION_HEADER, FORCE_HEADER, REASON_HEADER, routes::RouteSpec};
use meshd_model::fleet::{Audit, AuditContext, AuditMark, MAX_REASON, Verb};
use meshd_store::StoreError;
use meshd_trust::Role;
use meshd_types::{CorrelationId, failpoint};
use tracing::Instrument as _;

/// Maximum number of characters of an order's target in the audit log.
const MAX_TARGET: usize = 80;
/// Maximum length of a text response of the framework, in bytes.
const MAX_REJECTION: usize = 4096;
/// Refuses an order whose token was revoked after the request arrived.
const REVOKED: &str = "the token was revoked during the upload";

/// Routes an order: authorised, executed once per idempotency key, and recorded in the audit log.
pub(crate) fn audited_post<H, T>(spec: RouteSpec, verb: Verb, handler: H) -> MethodRouter<ApiState>
where
    H: Handler<T, ApiState>,
    T: 'static,
{
    let audit = move |request: Request, next: Next| audit_order(verb, spec, request, next);
    post(handler).layer(middleware::from_fn(errors_as_json)).layer(middleware::from_fn(audit))
}

/// Routes a read that requires a role.
pub(crate) fn authorised_get<H, T>(spec: RouteSpec, handler: H) -> MethodRouter<ApiState>
where
    H: Handler<T, ApiState>,
    T: 'static,
{
    let authorise = move |request: Request, next: Next| authorise(spec, request, next);
    get(handler).layer(middleware::from_fn(errors_as_json)).layer(middleware::from_fn(authorise))
}

/// Routes a read that opens a session. The session records itself; refusals are recorded here.
pub(crate) fn recorded_get<H, T>(spec: RouteSpec, verb: Verb, handler: H) -> MethodRouter<ApiState>
where
    H: Handler<T, ApiState>,
    T: 'static,
{
    let record = move |request: Request, next: Next| record_refusal(verb, spec, request, next);
    get(handler).layer(middleware::from_fn(errors_as_json)).layer(middleware::from_fn(record))
}

/// Converts an error response of the framework, which is plain text, to a [`Refused`]. Runs within
/// idempotency and audit log.
async fn errors_as_json(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    if !is_error || response.extensions().get::<Refused>().is_some() {
        return response;
    }
    let text = to_bytes(response.into_body(), MAX_REJECTION).await.unwrap_or_default();
    Refused::rejection(status, &String::from_utf8_lossy(&text)).into_response()
}

/// Refuses a precondition that no route evaluates, and parameters that the route does not have.
/// Lists evaluate `If-None-Match`.
fn parameters(spec: RouteSpec, uri: &Uri, headers: &HeaderMap) -> Result<Parameters, Refused> {
    if headers.contains_key(IF_MATCH) {
        return Err(Refused::precondition("If-Match"));
    }
    if spec.verb.is_some() && headers.contains_key(IF_NONE_MATCH) {
        return Err(Refused::precondition("If-None-Match"));
    }
    Parameters::of(uri, spec.query)
}

async fn authorise(spec: RouteSpec, mut request: Request, next: Next) -> Response {
    let may_read = |caller: &Caller| caller.role >= spec.role || !failpoint::defends("route-role");
    match request.extensions().get::<Caller>() {
        Some(caller) if may_read(caller) => {}
        Some(caller) => return Refused::insufficient_role(caller.role, spec.role).into_response(),
        None => return Refused::internal("the request has no caller").into_response(),
    }
    match parameters(spec, request.uri(), request.headers()) {
        Ok(parameters) => {
            request.extensions_mut().insert(parameters);
            next.run(request).await
        }
        Err(refused) => refused.into_response(),
    }
}

async fn record_refusal(verb: Verb, spec: RouteSpec, request: Request, next: Next) -> Response {
    let Some(state) = request.extensions().get::<ApiState>().cloned() else {
        return Refused::internal("the request has no API state").into_response();
    };
    let (mut parts, body) = request.into_parts();
    parts.extensions.insert(verb);
    let context = match AuditContext::from_request_parts(&mut parts, &state).await {
        Ok(context) => context,
        Err(refused) => return refused.into_response(),
    };
    let target = target(&mut parts).await;
    let response = authorise(spec, Request::from_parts(parts, body), next).await;
    if let Some(refused) = response.extensions().get::<Refused>().cloned()
        && let Err(error) = store(&state, context, target, OrderResult::Refused(refused)).await
    {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "cannot write a refusal to the audit log"
        );
    }
    response
}

/// Adds the correlation ID to the request, its log lines and its response.
pub(crate) async fn with_correlation_id(
    State(state): State<ApiState>,
    mut request: Request,
    next: Next,
) -> Response {
    let correlation = state.central.env.new_correlation();
    request.extensions_mut().insert(correlation);
    request.extensions_mut().insert(state);
    let answer = async {
        let mut response = next.run(request).await;
        match response.extensions_mut().remove::<Refused>() {
            Some(refused) => refused.answer(correlation),
            None => response,
        }
    };
    let mut response =
        answer.instrument(tracing::info_span!("admin", correlation_id = %correlation)).await;
    if let Ok(value) = HeaderValue::from_str(&correlation.to_string()) {
        response.headers_mut().insert(CORRELATION_HEADER, value);
    }
    response
}

/// Completes and records a started order even if its client disconnects.
async fn audit_order(verb: Verb, spec: RouteSpec, request: Request, next: Next) -> Response {
    let Some(state) = request.extensions().get::<ApiState>().cloned() else {
        return Refused::internal("the request has no API state").into_response();
    };
    let tasks = state.tasks.clone();
    let work = tasks.spawn(run_order(state, verb, spec, request, next).in_current_span());
    work.await.unwrap_or_else(|_| {
        Refused::internal("executing the order was interrupted").into_response()
    })
}

async fn run_order(
    state: ApiState,
    verb: Verb,
    spec: RouteSpec,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    parts.extensions.insert(verb);
    parts.extensions.insert(AuditMark::default());
    let context = match AuditContext::from_request_parts(&mut parts, &state).await {
        Ok(context) => context,
        Err(refused) => return refused.into_response(),
    };
    let target = target(&mut parts).await;
    let role = parts.extensions.get::<Caller>().map_or(Role::Viewer, |caller| caller.role);
    tracing::info!(actor = %context.principal, %verb, target, reason = context.reason, "ordered");
    let response = if role < spec.role {
        Refused::insufficient_role(role, spec.role).into_response()
    } else if let Err(refused) = parameters(spec, &parts.uri, &parts.headers) {
        refused.into_response()
    } else {
        let limit = if verb == Verb::MachineImport { MAX_IMPORT } else { MAX_BODY };
        match read_body(&state, &parts, body, limit).await {
            Ok(bytes) => idempotency::execute_once(&state, &context, parts, bytes, next).await,
            Err(refused) => refused.into_response(),
        }
    };
    let result = match response.extensions().get::<Refused>() {
        Some(refused) => OrderResult::Refused(refused.clone()),
        None if response.extensions().get::<idempotency::Replayed>().is_some() => {
            OrderResult::Replayed
        }
        None => OrderResult::Done,
    };
    if let Err(error) = store(&state, context, target, result).await {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "cannot write an order to the audit log"
        );
    }
    response
}

/// Reads the whole body of an order. Refuses the order if its token is revoked during the upload.
async fn read_body(
    state: &ApiState,
    parts: &Parts,
    body: Body,
    limit: usize,
) -> Result<Bytes, Refused> {
    let Some(caller) = parts.extensions.get::<Caller>() else {
        return Err(Refused::internal("the request has no caller"));
    };
    let read = tokio::select! {
        read = to_bytes(body, limit) => read,
        () = caller.revoked(&state.central) => return Err(Refused::unauthorized(REVOKED).with_hint("request another one")),
    };
    let bytes = read.map_err(|error| match error.into_inner().is::<LengthLimitError>() {
        true => Refused::too_large(limit),
        false => Refused::bad_request("the body is incomplete"),
    })?;
    if caller.still_may(&state.central) {
        Ok(bytes)
    } else {
        Err(Refused::unauthorized(REVOKED).with_hint("request another one"))
    }
}

/// Returns the target of an order: the first parameter of its path.
async fn target(parts: &mut Parts) -> Option<String> {
    let params = RawPathParams::from_request_parts(parts, &()).await.ok()?;
    params
        .iter()
        .next()
        .map(|(_, value)| value.chars().filter(|c| !c.is_control()).take(MAX_TARGET).collect())
}

enum OrderResult {
    Done,
    Replayed,
    Refused(Refused),
}

/// Writes the result of an order to the audit log, unless the change itself wrote an audit line.
async fn store(
    state: &ApiState,
    context: AuditContext,
    target: Option<String>,
    result: OrderResult,
) -> Result<(), StoreError> {
    let mut audit = Audit::done(state.central.now(), context);
    match result {
        OrderResult::Refused(refused) => {
            (audit.outcome, audit.detail) = (refused.outcome(), refused.sentence().to_owned())
        }
        OrderResult::Replayed => {
            "repeated idempotency key: returned the stored response, not executed again"
                .clone_into(&mut audit.detail)
        }
        OrderResult::Done if audit.by.audited.is_set() => return Ok(()),
        OrderResult::Done => {}
    }
    audit.node = target.as_deref().and_then(|name| state.central.nodes.resolve(name).ok());
    audit.target = audit.node.map(|node| node.to_string()).or(target);
    state.central.env.write_audit(vec![audit]).await
}

impl FromRequestParts<ApiState> for AuditContext {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &ApiState) -> Result<Self, Refused> {
        let known = parts.extensions.get::<Caller>().zip(parts.extensions.get::<Verb>());
        let Some(((caller, verb), correlation)) =
            known.zip(parts.extensions.get::<CorrelationId>())
        else {
            return Err(Refused::internal("the request has no caller, verb or correlation ID"));
        };
        let mut context = AuditContext::new(caller.principal.clone(), *verb, *correlation);
        context.audited = parts.extensions.get::<AuditMark>().cloned().unwrap_or_default();
        context.reason = reason(&parts.headers)?;
        context.forced = read_force_header(&parts.headers)?;
        Ok(context)
    }
}

/// Parses the header that permits the loss of VMs.
fn read_force_header(headers: &HeaderMap) -> Result<bool, Refused> {
    match headers.get(FORCE_HEADER).map(HeaderValue::as_bytes) {
        None | Some(b"false") => Ok(false),
        Some(b"true") => Ok(true),
        Some(_) => Err(Refused::bad_request(format!("{FORCE_HEADER} is true or false"))),
    }
}

/// Parses the header with the reason of the order.
fn reason(headers: &HeaderMap) -> Result<Option<String>, Refused> {
    let Some(value) = headers.get(REASON_HEADER) else { return Ok(None) };
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| Refused::bad_request("the reason is not UTF-8"))?;
    let text = text.trim();
    if text.chars().count() > MAX_REASON || text.chars().any(char::is_control) {
        return Err(Refused::bad_request(format!(
            "a reason is one line of at most {MAX_REASON} characters"
        ))
        .with_hint("shorten it"));
    }
    Ok((!text.is_empty()).then(|| text.to_owned()))
}
