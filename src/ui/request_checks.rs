//! Checks that precede every page: origin of unsafe requests, session, security headers.

use crate::{
    Environment, PREFIX, assets,
    client::{ApiClient, ApiError, NavCounts, SentApprovals},
    console::Consoles,
    form::{Fields, SentForms},
    html,
    screens::{self, sign_in},
    session::{Session, SessionOrigin, Sessions, SignIn},
};
use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, Form, FromRequest as _, Query, State},
    http::{
        HeaderMap, HeaderValue, Method, Request, StatusCode, Uri,
        header::{
            CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, LOCATION, ORIGIN,
            REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
        },
        uri::Authority,
    },
    response::{IntoResponse as _, Response},
};
use http_body_util::BodyExt as _;
use meshd_api::{CallerView, routes as api};
use meshd_types::{Digest, Secret, failpoint};
use std::{net::IpAddr, time::Duration};
use tower::ServiceExt as _;

/// Maximum size of a form, in bytes: an action on as many nodes as one order may name.
const MAX_FORM: usize = 256 * 1024;
/// Maximum time for a page, including a slow upload of a form. The timeout of the API is shorter.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Maximum length of an API token that meshd checks, in bytes.
const MAX_TOKEN: usize = 256;
/// Allows only the style sheet and script of meshd; forbids inline code and styles.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
                      base-uri 'none'; frame-ancestors 'none'";

#[derive(Clone)]
struct Gate {
    environment: Environment,
    pages: Router,
    sessions: Sessions,
    consoles: Consoles,
    sent_approvals: SentApprovals,
    running_orders: SentForms<Vec<u8>>,
}

pub(crate) fn router(environment: Environment) -> Router {
    let gate = Gate {
        environment,
        pages: screens::router(),
        sessions: Sessions::default(),
        consoles: Consoles::default(),
        sent_approvals: SentApprovals::default(),
        running_orders: SentForms::default(),
    };
    // One handler serves all paths: a route of this router would leave its path parameters in the
    // request, and the API counts its parameters.
    Router::new().fallback(enter).layer(DefaultBodyLimit::disable()).with_state(gate)
}

async fn enter(State(gate): State<Gate>, request: Request<Body>) -> Response {
    let path = request.uri().path();
    if matches!(gate.environment.sign_in, SignIn::Link(_))
        && !is_loopback(request.headers())
        && failpoint::defends("ui-loopback-host")
    {
        // The Host header names another site that resolves to this address (DNS rebinding).
        let message = "meshd ui answers at loopback addresses only";
        let error = ApiError::new(
            StatusCode::MISDIRECTED_REQUEST,
            "bad_host",
            message,
            "open the link that meshd ui printed",
        );
        return with_security_headers(html::failure(None, &error));
    }
    if path == "/" {
        return with_security_headers(redirect(&format!("{PREFIX}/")));
    }
    if path != PREFIX && !path.starts_with(&format!("{PREFIX}/")) {
        if matches!(gate.environment.sign_in, SignIn::Link(_))
            && failpoint::defends("ui-api-session")
        {
            // The API grants the rights of the user who runs `meshd ui`, so a request without a
            // session must never reach the API.
            return with_security_headers(redirect(&format!("{PREFIX}/")));
        }
        return gate.environment.api.oneshot(request).await.unwrap_or_else(|never| match never {});
    }
    if let Some(asset) = assets::find(path) {
        return asset;
    }
    with_security_headers(match tokio::time::timeout(TIME_LIMIT, gate.page(request)).await {
        Ok(Ok(response) | Err(response)) => response,
        Err(_) => {
            let message = format!("the page took longer than {} s", TIME_LIMIT.as_secs());
            html::failure(
                None,
                &ApiError::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message, "try again"),
            )
        }
    })
}

/// Adds the headers of every page.
fn with_security_headers(mut response: Response) -> Response {
    if !failpoint::defends("ui-policy") {
        return response;
    }
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        // With `no-referrer`, browsers send `Origin: null` with the UI's forms (Fetch, 3.1).
        (REFERRER_POLICY, "same-origin"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

impl Gate {
    /// Answers with a page. An `Err` contains an early response.
    async fn page(self, request: Request<Body>) -> Result<Response, Response> {
        if request.method() == Method::POST
            && !self.is_from_here(request.headers())
            && failpoint::defends("ui-origin")
        {
            let hint = "open the page anew and send the form from there";
            let message = "the form was sent by another site, or the browser does not say by which";
            return Err(html::failure(
                None,
                &ApiError::new(StatusCode::FORBIDDEN, "bad_origin", message, hint),
            ));
        }
        match (
            request.method().as_str(),
            request.uri().path().strip_prefix(PREFIX).unwrap_or_default(),
        ) {
            ("GET", "/sign-in") => return Ok(sign_in::page(&self.environment.sign_in, None)),
            ("POST", "/sign-in") => return self.sign_in(request).await,
            ("GET", "/enter") => return self.by_link(request).await,
            ("POST", "/sign-out") => return Ok(self.sign_out(request.headers())),
            _ => {}
        }
        let session = self.session(&request).ok_or_else(|| {
            self.end(request.headers());
            redirect(&format!("{PREFIX}/sign-in"))
        })?;
        let mut client = self.client(&request, Some(session.key), session.token, session.caller);
        // An order does not wait for the counts of the navigation, and they change with it.
        if request.method() != Method::POST && !is_of_console(request.uri().path()) {
            client.nav_counts = html::load_nav_counts(&client).await;
        }
        let headers = request.headers().clone();
        let mut request = request;
        request.extensions_mut().insert(client);
        let response =
            self.pages.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
        if response.status() == StatusCode::UNAUTHORIZED && failpoint::defends("ui-revoked-session")
        {
            // The token was revoked or has expired.
            return Ok(self.sign_out(&headers));
        }
        Ok(response)
    }

    /// Returns true if the browser confirms that a page of this server sent the form. Without these
    /// headers, the form is refused.
    fn is_from_here(&self, headers: &HeaderMap) -> bool {
        // An attacker in the network path can answer `http://` under this server's name and have a
        // browser send a form from there.
        let scheme = match self.environment.sign_in {
            SignIn::Token => "https",
            SignIn::Link(_) => "http",
        };
        let text =
            |name: &axum::http::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let is_ours = |origin: &Uri, host: &str| {
            let is_authority =
                origin.authority().is_some_and(|origin| origin.as_str().eq_ignore_ascii_case(host));
            is_authority
                && (origin.scheme_str() == Some(scheme) || !failpoint::defends("ui-origin-scheme"))
        };
        match (text(&ORIGIN).and_then(|origin| origin.parse::<Uri>().ok()), text(&HOST)) {
            (Some(origin), Some(host)) => is_ours(&origin, host),
            _ => false,
        }
    }

    fn client(
        &self,
        request: &Request<Body>,
        session: Option<Digest>,
        token: Option<Secret<String>>,
        caller: CallerView,
    ) -> ApiClient {
        let environment = self.environment.clone();
        let consoles = self.consoles.clone();
        let sessions = self.sessions.clone();
        let is_foreign = is_foreign(request.headers());
        let origin = request.extensions().clone();
        let nav_counts = NavCounts::default();
        ApiClient {
            environment,
            consoles,
            sessions,
            sent_approvals: self.sent_approvals.clone(),
            running_orders: self.running_orders.clone(),
            is_foreign,
            origin,
            session,
            token,
            caller,
            nav_counts,
        }
    }

    /// Returns the name and attributes of the cookie. Browsers accept a `__Host-` cookie only over
    /// TLS.
    fn cookie(&self) -> (&'static str, &'static str) {
        match self.environment.sign_in {
            SignIn::Token => ("__Host-meshd", "Path=/; Secure; HttpOnly; SameSite=Strict"),
            SignIn::Link(_) => ("meshd", "Path=/; HttpOnly; SameSite=Strict"),
        }
    }

    fn session_id<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let (name, _) = self.cookie();
        let cookies = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    fn session(&self, request: &Request<Body>) -> Option<Session> {
        let origin = request.extensions().get::<SessionOrigin>();
        self.sessions.find(self.session_id(request.headers())?, origin, (self.environment.now)())
    }

    async fn sign_in(self, request: Request<Body>) -> Result<Response, Response> {
        if !matches!(self.environment.sign_in, SignIn::Token) {
            return Err(sign_in::page(&self.environment.sign_in, None));
        }
        let client = self.client(&request, None, None, anonymous_caller());
        let fields = fields(request).await?;
        let text = fields.text("token");
        if text.is_empty()
            || text.len() > MAX_TOKEN
            || !text.bytes().all(|byte| byte.is_ascii_graphic())
        {
            let error = ApiError::bad_request("this is no API token", "");
            return Err(sign_in::page(&self.environment.sign_in, Some(&error)));
        }
        let token = Some(Secret::new(text.to_owned()));
        self.begin(ApiClient { token, ..client }).await
    }

    async fn by_link(self, request: Request<Body>) -> Result<Response, Response> {
        let SignIn::Link(code) = &self.environment.sign_in else {
            return Err(redirect(&format!("{PREFIX}/sign-in")));
        };
        let query = Query::<Fields>::try_from_uri(request.uri());
        let query = query.map(|Query(fields)| fields).unwrap_or_default();
        if !code.redeem(query.text("code")) {
            let error = ApiError::new(
                StatusCode::FORBIDDEN,
                "bad_link",
                "this link was used, or is not of this meshd ui",
                "run `meshd ui` again",
            );
            return Err(sign_in::page(&self.environment.sign_in, Some(&error)));
        }
        let client = self.client(&request, None, None, anonymous_caller());
        self.begin(client).await
    }

    /// Signs in a user whose credential the API accepts.
    async fn begin(self, client: ApiClient) -> Result<Response, Response> {
        let caller = client.get(api::GET_CALLER.path([])).await;
        let caller =
            caller.map_err(|error| sign_in::page(&self.environment.sign_in, Some(&error)))?;
        tracing::info!(actor = caller.name, role = %caller.role, "signed in to the web UI");
        let random = (self.environment.random)();
        let now = (self.environment.now)();
        let origin = client.origin.get::<SessionOrigin>().cloned();
        let begun = self.sessions.begin(random, client.token, caller, origin, now);
        begun.ended.iter().for_each(|session| self.consoles.end(*session));
        let (name, attributes) = self.cookie();
        let mut response = redirect(&format!("{PREFIX}/"));
        let cookie = HeaderValue::try_from(format!("{name}={}; {attributes}", begun.id.expose()));
        let mut cookie = cookie.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())?;
        cookie.set_sensitive(true);
        response.headers_mut().insert(SET_COOKIE, cookie);
        Ok(response)
    }

    /// Ends the session of a request, and its consoles.
    fn end(&self, headers: &HeaderMap) {
        if let Some(id) = self.session_id(headers) {
            self.consoles.end(self.sessions.end(id));
        }
    }

    fn sign_out(&self, headers: &HeaderMap) -> Response {
        self.end(headers);
        let mut response = redirect(&format!("{PREFIX}/sign-in"));
        self.forget(response.headers_mut());
        response
    }

    /// Adds a header that makes the browser delete its cookie.
    fn forget(&self, headers: &mut HeaderMap) {
        let (name, attributes) = self.cookie();
        if let Ok(value) = HeaderValue::try_from(format!("{name}=; {attributes}; Max-Age=0")) {
            headers.insert(SET_COOKIE, value);
        }
    }
}

/// Returns true for requests of the script of a console: they come with each key, and have no
/// navigation.
fn is_of_console(path: &str) -> bool {
    ["/screen", "/input"].iter().any(|end| path.ends_with(end))
}

/// Returns the caller before the API has identified the user.
fn anonymous_caller() -> CallerView {
    CallerView { name: String::new(), role: meshd_trust::Role::Viewer }
}

/// Parses the fields of a form.
pub(crate) async fn fields(request: Request<Body>) -> Result<Fields, Response> {
    let (parts, body) = request.into_parts();
    let too_long = |_| {
        let error = ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_long",
            "the form is too long",
            "choose less",
        );
        html::failure(None, &error)
    };
    let bytes =
        http_body_util::Limited::new(body, MAX_FORM).collect().await.map_err(too_long)?.to_bytes();
    let request = Request::from_parts(parts, Body::from(bytes));
    let form = Form::<Vec<(String, String)>>::from_request(request, &()).await;
    form.map(|Form(fields)| Fields(fields))
        .map_err(|rejection| html::failure(None, &ApiError::bad_request(rejection.body_text(), "")))
}

/// Returns true if the browser reports that a page of another origin sent the request. Another
/// origin of this site counts too.
fn is_foreign(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none")
}

/// Returns true if the request names this host by a loopback address or `localhost`.
fn is_loopback(headers: &HeaderMap) -> bool {
    let host = headers
        .get(HOST)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<Authority>().ok());
    host.is_some_and(|host| {
        let name = host.host().trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    })
}

pub(crate) fn redirect(to: &str) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    if let Ok(value) = HeaderValue::try_from(to) {
        response.headers_mut().insert(LOCATION, value);
    }
    response
}
