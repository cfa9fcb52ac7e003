//! Calls the admin API on behalf of the signed-in user.

use crate::{
    Environment,
    console::{Console, ConsoleTarget, Consoles},
    form::SentForms,
    session::Sessions,
};
use axum::{
    body::Body,
    http::{
        Extensions, HeaderMap, HeaderValue, Method, Request, StatusCode,
        header::{AUTHORIZATION, CONTENT_TYPE},
    },
    response::Response,
};
use http_body_util::{BodyExt as _, Limited};
pub(crate) use meshd_api::segment as encoded;
use meshd_api::{
    BulkDone, CURSOR_HEADER, CallerView, ErrorView, FORCE_HEADER, KEY_HEADER, REASON_HEADER,
    TOTAL_HEADER,
    routes::{Array, GetPath, Json, JsonLines, PostPath, UntypedPost},
};
use meshd_types::{Digest, Secret, failpoint};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::sync::Arc;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tower::ServiceExt as _;

/// Maximum size of an API response, in bytes.
const MAX_ANSWER: usize = 64 << 20;
/// Approvals that were executed, and their results.
pub(crate) type SentApprovals = SentForms<Result<BulkDone, ApiError>>;

/// API client of one user.
#[derive(Clone)]
pub(crate) struct ApiClient {
    pub(crate) environment: Environment,
    pub(crate) consoles: Consoles,
    pub(crate) sessions: Sessions,
    pub(crate) sent_approvals: SentApprovals,
    /// Orders that the API executes now, and the bodies of its answers.
    pub(crate) running_orders: SentForms<Vec<u8>>,
    /// True if the browser reports that a page of another origin sent the request.
    pub(crate) is_foreign: bool,
    /// Origin of the browser's request, in the form that the API expects.
    pub(crate) origin: Extensions,
    /// Key of the session; `None` before sign-in.
    pub(crate) session: Option<Digest>,
    pub(crate) token: Option<Secret<String>>,
    pub(crate) caller: CallerView,
    /// Numbers of the navigation, read before the page.
    pub(crate) nav_counts: NavCounts,
}

/// Numbers beside the entries of the navigation. Zero shows no number.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NavCounts {
    /// Machines that wait for approval.
    pub(crate) waiting: usize,
    /// Nodes that need an operator.
    pub(crate) attention: usize,
    /// Findings of doctor that are no success.
    pub(crate) findings: usize,
    /// True if a finding keeps machines from booting.
    pub(crate) is_blocked: bool,
    pub(crate) operations: usize,
    pub(crate) rollouts: usize,
}

/// Reason why the API refused or failed a request.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) view: ErrorView,
}

/// One page of a list.
#[derive(Debug)]
pub(crate) struct ListPage<T> {
    pub(crate) rows: Vec<T>,
    /// Cursor of the next page.
    pub(crate) next: Option<String>,
    /// Number of rows on all pages.
    pub(crate) total: Option<usize>,
}

/// Headers of an order.
#[derive(Clone, Debug, Default)]
pub(crate) struct OrderNotes {
    pub(crate) reason: String,
    pub(crate) force: bool,
    /// Idempotency key: the API executes the order once, however often the form is sent.
    pub(crate) key: String,
}

impl ApiError {
    pub(crate) fn new(
        status: StatusCode,
        code: &str,
        message: impl Into<String>,
        hint: &str,
    ) -> Self {
        let code = code.to_owned();
        let hint = hint.to_owned();
        ApiError {
            status,
            view: ErrorView { code, message: message.into(), hint, correlation_id: String::new() },
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>, hint: &str) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, "bad_request", message, hint)
    }

    pub(crate) fn no_such_action() -> Self {
        ApiError::new(StatusCode::NOT_FOUND, "not_found", "there is no such action", "")
    }

    fn not_understood(error: &dyn std::error::Error) -> Self {
        let message = format!("the answer of the API is not understood: {error}");
        ApiError::new(
            StatusCode::BAD_GATEWAY,
            "bad_answer",
            message,
            "is meshd of the same version?",
        )
    }
}

impl ApiClient {
    async fn call(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Body,
    ) -> Result<Response, ApiError> {
        let request = Request::builder().method(method).uri(path).body(body);
        let mut request = request
            .map_err(|error| ApiError::bad_request(format!("invalid address: {error}"), ""))?;
        request.extensions_mut().extend(self.origin.clone());
        request.headers_mut().extend(headers);
        self.sign(request.headers_mut())?;
        let response = self
            .environment
            .api
            .clone()
            .oneshot(request)
            .await
            .unwrap_or_else(|never| match never {});
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = collect(response.into_body()).await?;
        let view =
            serde_json::from_slice(&body).map_err(|error| ApiError::not_understood(&error))?;
        Err(ApiError { status, view })
    }

    async fn read<R>(&self, path: GetPath<R>) -> Result<Response, ApiError> {
        self.call(Method::GET, path.as_str(), HeaderMap::new(), Body::empty()).await
    }

    /// Adds the token. The API checks the token with each request, so revocation takes effect at
    /// once.
    fn sign(&self, headers: &mut HeaderMap) -> Result<(), ApiError> {
        if let Some(token) = &self.token {
            let value = HeaderValue::try_from(format!("Bearer {}", token.expose()));
            let mut value = value.map_err(|error| ApiError::not_understood(&error))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(())
    }

    /// Returns the console that this session has open.
    pub(crate) fn console(&self, target: &ConsoleTarget) -> Option<Arc<Console>> {
        self.consoles.find(self.session?, target, (self.environment.now)())
    }

    /// Opens a console. `program` is that of a target that takes one.
    pub(crate) async fn open_console(
        &self,
        target: &ConsoleTarget,
        program: &str,
    ) -> Result<Arc<Console>, ApiError> {
        let nobody = || {
            ApiError::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "no user is signed in",
                "sign in",
            )
        };
        if self.is_foreign && failpoint::defends("ui-console-origin") {
            let hint = "open it from the page of the VM, node or container";
            return Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "bad_origin",
                "another site opens this console",
                hint,
            ));
        }
        let session = self.session.ok_or_else(nobody)?;
        let request = target.address(program).into_client_request();
        let mut request = request.map_err(|error| ApiError::not_understood(&error))?;
        self.sign(request.headers_mut())?;
        let opened = (self.environment.open_socket)(request, self.origin.clone()).await;
        let socket = opened.map_err(|(status, view)| ApiError { status, view })?;
        let console = self.consoles.open(session, target, program, socket, self.environment.now);
        // This check follows the insertion into the table. A concurrent sign-out either finds the
        // console there, or this check detects the sign-out.
        if !self.sessions.lives(session, (self.environment.now)())
            && failpoint::defends("ui-console-late")
        {
            self.consoles.end(session);
            return Err(nobody());
        }
        Ok(console)
    }

    /// Requests one value.
    pub(crate) async fn get<R>(&self, path: GetPath<R>) -> Result<R::Value, ApiError>
    where
        R: Json<Value: DeserializeOwned>,
    {
        self.page_of(path).await.map(|(value, _)| value)
    }

    /// Requests selected fields of the rows of a list. `T` has these fields.
    pub(crate) async fn get_fields<R, T: DeserializeOwned>(
        &self,
        path: GetPath<R>,
    ) -> Result<Vec<T>, ApiError> {
        let body = collect(self.read(path).await?.into_body()).await?;
        serde_json::from_slice(&body).map_err(|error| ApiError::not_understood(&error))
    }

    async fn page_of<R>(&self, path: GetPath<R>) -> Result<(R::Value, HeaderMap), ApiError>
    where
        R: Json<Value: DeserializeOwned>,
    {
        let response = self.read(path).await?;
        let (parts, body) = response.into_parts();
        let body = collect(body).await?;
        let value =
            serde_json::from_slice(&body).map_err(|error| ApiError::not_understood(&error))?;
        Ok((value, parts.headers))
    }

    /// Requests one page of a list.
    pub(crate) async fn list<T>(&self, path: GetPath<Array<T>>) -> Result<ListPage<T>, ApiError>
    where
        T: DeserializeOwned,
        Array<T>: Json<Value = Vec<T>>,
    {
        let (rows, headers) = self.page_of(path).await?;
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let total = text(TOTAL_HEADER).and_then(|total| total.parse().ok());
        Ok(ListPage { rows, next: text(CURSOR_HEADER).map(str::to_owned), total })
    }

    /// Requests values in the form of one JSON value per line.
    pub(crate) async fn lines<T: DeserializeOwned>(
        &self,
        path: GetPath<JsonLines<T>>,
    ) -> Result<ListPage<T>, ApiError> {
        let response = self.read(path).await?;
        let next = response
            .headers()
            .get(CURSOR_HEADER)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let body = collect(response.into_body()).await?;
        let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let rows = lines.map(|line| {
            serde_json::from_slice(line).map_err(|error| ApiError::not_understood(&error))
        });
        Ok(ListPage { rows: rows.collect::<Result<_, _>>()?, next, total: None })
    }

    /// Requests bytes and keeps the last ones: between `keep` and `2 * keep`, or all of a shorter
    /// response.
    pub(crate) async fn tail<R>(&self, path: GetPath<R>, keep: usize) -> Result<Vec<u8>, ApiError> {
        let mut body = self.read(path).await?.into_body();
        let mut tail: Vec<u8> = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ApiError::not_understood(&error))?;
            let Some(bytes) = frame.data_ref() else { continue };
            tail.extend_from_slice(&bytes[bytes.len().saturating_sub(keep)..]);
            if tail.len() > 2 * keep {
                tail.drain(..tail.len() - keep);
            }
        }
        Ok(tail)
    }

    /// Sends an order. The same order of the same session, as a double click sends it, has the
    /// result of the one that runs, and a browser that closes its connection ends neither.
    pub(crate) async fn order<B, R>(
        &self,
        path: PostPath<B, R>,
        body: &B::Value,
        notes: &OrderNotes,
    ) -> Result<R::Value, ApiError>
    where
        B: Json<Value: Serialize>,
        R: Json<Value: DeserializeOwned>,
    {
        let body = serde_json::to_vec(body).map_err(|error| ApiError::not_understood(&error))?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let plain = |name: &str, value: &str| {
            HeaderValue::from_bytes(value.as_bytes()).map_err(|_| {
                let message = format!("the {name} has several lines");
                ApiError::bad_request(message, "write it in one line")
            })
        };
        if !notes.reason.is_empty() {
            headers.insert(REASON_HEADER, plain("reason", &notes.reason)?);
        }
        if notes.force {
            headers.insert(FORCE_HEADER, HeaderValue::from_static("true"));
        }
        if !notes.key.is_empty() {
            headers.insert(KEY_HEADER, plain("key", &notes.key)?);
        }
        let order = self.order_digest(path.as_str(), notes, &body);
        let client = self.clone();
        let path = path.as_str().to_owned();
        let work = async move {
            let response = client.call(Method::POST, &path, headers, Body::from(body)).await?;
            collect(response.into_body()).await
        };
        let body = self.running_orders.share(order, work).await?;
        serde_json::from_slice(&body).map_err(|error| ApiError::not_understood(&error))
    }

    fn order_digest(&self, path: &str, notes: &OrderNotes, body: &[u8]) -> Digest {
        let session = self.session.map(|session| session.to_string()).unwrap_or_default();
        let force = if notes.force { "force" } else { "" };
        let texts = [session.as_str(), path, &notes.reason, force, &notes.key];
        Digest::of_fields(texts.into_iter().map(str::as_bytes).chain([body]))
    }

    /// Gives an order without types, and returns the response as JSON.
    pub(crate) async fn order_untyped(
        &self,
        order: UntypedPost,
        notes: &OrderNotes,
    ) -> Result<Value, ApiError> {
        let (path, body) = order;
        self.order(path, &body, notes).await
    }
}

async fn collect(body: Body) -> Result<Vec<u8>, ApiError> {
    let collected = Limited::new(body, MAX_ANSWER).collect().await;
    collected
        .map(|body| body.to_bytes().to_vec())
        .map_err(|error| ApiError::not_understood(error.as_ref()))
}
