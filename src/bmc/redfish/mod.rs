//! Redfish: a small client for the requests of meshd, over the HTTP client of meshd.
//!
//! Each request reads the system first, because BMCs differ in what they offer. Every answer is
//! bounded, and any JSON is accepted: a missing property has a default or makes a request
//! impossible.
//!
//! | module | content |
//! | --- | --- |
//! | here | the client, and requests that change or report the power |
//! | `reports` | sensors, event log, versions |

mod reports;

use crate::{Bmc, ReportKind, ReportRow, ServerTrust, parse_address};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, StatusCode};
use meshd_client::{CallStage, Client, ClientError, Endpoint, Timeouts, collect, pinned_config};
use meshd_model::operations::{BmcFailure, BmcResult};
use meshd_types::{BmcRequest, BootDevice, PowerState};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    version::{TLS12, TLS13},
};
use serde_json::{Value, json};
use std::{net::Ipv6Addr, sync::Arc, time::Duration};
use tokio::time::timeout;

/// Maximum size of an answer, in bytes.
const MAX_ANSWER: usize = 1 << 20;
/// Maximum length of a path, in bytes.
const MAX_PATH: usize = 512;
const SYSTEMS: &str = "/redfish/v1/Systems";

/// Sends a request.
pub(crate) async fn send(bmc: &Bmc, request: BmcRequest) -> BmcResult {
    Session::open(bmc)?.send(request).await
}

/// Asks for a report.
pub(crate) async fn report(bmc: &Bmc, kind: ReportKind) -> Result<Vec<ReportRow>, BmcFailure> {
    reports::report(&Session::open(bmc)?, kind).await
}

fn failed(reason: impl Into<String>) -> BmcFailure {
    BmcFailure::Failed(reason.into())
}

fn unsupported(reason: impl Into<String>) -> BmcFailure {
    BmcFailure::Unsupported(reason.into())
}

/// A server with its credentials. Each request opens a connection.
struct Session {
    client: Client,
    host: String,
    /// Header with user and password. Never logged.
    authorization: String,
    /// Path of the system in the address; `None` for the only one of the BMC.
    system: Option<String>,
    /// Time limit of one answer.
    limit: Duration,
}

/// A system, as the BMC describes it.
struct System {
    path: String,
    value: Value,
}

impl Session {
    fn open(bmc: &Bmc) -> Result<Self, BmcFailure> {
        let address = bmc.address.strip_prefix("https://").unwrap_or(&bmc.address);
        let (server, system) = match address.split_once('/') {
            Some((server, path)) => (server, Some(format!("/{}", path.trim_end_matches('/')))),
            None => (address, None),
        };
        let invalid = || failed("the address of the BMC is invalid");
        let address = parse_address(server).ok_or_else(invalid)?;
        let system = system.filter(|path| path != "/");
        if system.as_ref().is_some_and(|path| !is_path(path)) {
            return Err(invalid());
        }
        let name = ServerName::try_from(address.host.clone()).map_err(|_| invalid())?;
        let login = bmc.login.as_ref().ok_or_else(|| failed("the BMC has no user"))?;
        let trust = bmc.trust.as_ref().ok_or_else(|| failed("no certificate is trusted"))?;
        let config = Arc::new(tls_config(trust).map_err(|error| failed(error.to_string()))?);
        // Safe: the header goes into one TLS connection.
        let pair = format!("{}:{}", login.user, login.password.expose());
        let port = address.port.unwrap_or(443);
        let endpoint = Endpoint::Tls { host: address.host, port, name, config };
        let half = bmc.timeout.max(Duration::from_secs(1)) / 2;
        Ok(Session {
            client: Client {
                endpoint,
                timeouts: Timeouts { connect: half, response: bmc.timeout },
            },
            host: host_header(server),
            authorization: format!("Basic {}", BASE64_STANDARD.encode(pair)),
            system,
            limit: bmc.timeout,
        })
    }

    async fn send(&self, request: BmcRequest) -> BmcResult {
        let system = self.system().await?;
        match request {
            BmcRequest::Status => Ok(Some(power_state(&system.value)?)),
            BmcRequest::On => self.reset(&system, &["On", "ForceOn"]).await,
            BmcRequest::ShutDown => self.reset(&system, &["GracefulShutdown"]).await,
            BmcRequest::Off => self.reset(&system, &["ForceOff"]).await,
            BmcRequest::Cycle => self.reset(&system, &["PowerCycle", "ForceRestart"]).await,
            BmcRequest::Reset => self.reset(&system, &["ForceRestart", "PowerCycle"]).await,
            BmcRequest::BootDevice(device) => self.set_boot_device(&system, device).await,
            BmcRequest::Identify(on) => {
                let body = if system.value.get("LocationIndicatorActive").is_some() {
                    json!({ "LocationIndicatorActive": on })
                } else if system.value.get("IndicatorLED").is_some() {
                    json!({ "IndicatorLED": if on { "Blinking" } else { "Off" } })
                } else {
                    return Err(unsupported("the BMC offers no identification light"));
                };
                self.patch(&system, &body).await
            }
        }
    }

    /// Reads the system of the address, or the only system of the BMC.
    async fn system(&self) -> Result<System, BmcFailure> {
        let path = match &self.system {
            Some(path) => path.clone(),
            None => only_member(&self.get(SYSTEMS).await?)?,
        };
        let value = self.get(&path).await?;
        Ok(System { path, value })
    }

    /// Resets the system by the first of these types that the BMC offers.
    async fn reset(&self, system: &System, types: &[&str]) -> BmcResult {
        let action = &system.value["Actions"]["#ComputerSystem.Reset"];
        let allowed = action["ResetType@Redfish.AllowableValues"].as_array();
        let is_allowed = |kind: &&&str| {
            allowed.is_none_or(|allowed| allowed.iter().any(|value| value == **kind))
        };
        let kind = types.iter().find(is_allowed);
        let kind = kind.ok_or_else(|| unsupported(format!("the BMC offers no {}", types[0])))?;
        let target = action["target"].as_str().filter(|path| is_path(path));
        let default = format!("{}/Actions/ComputerSystem.Reset", system.path);
        let body = json!({ "ResetType": kind });
        self.call(Method::POST, target.unwrap_or(&default), Some(&body), None).await?;
        Ok(None)
    }

    /// Sets the boot device, and reads it back: some BMCs accept it and forget it.
    async fn set_boot_device(&self, system: &System, device: BootDevice) -> BmcResult {
        let target = match device {
            BootDevice::Pxe => "Pxe",
            BootDevice::Disk => "Hdd",
            BootDevice::Bios => "BiosSetup",
            BootDevice::None => "None",
        };
        let enabled = if device == BootDevice::None { "Disabled" } else { "Once" };
        let boot = json!({
            "BootSourceOverrideEnabled": enabled, "BootSourceOverrideTarget": target
        });
        self.patch(system, &json!({ "Boot": boot })).await?;
        let after = self.get(&system.path).await?;
        let reported = after["Boot"]["BootSourceOverrideTarget"].as_str();
        match reported {
            Some(reported) if device != BootDevice::None && reported != target => {
                Err(failed(format!("the BMC accepted boot device {target} and reports {reported}")))
            }
            _ => Ok(None),
        }
    }

    /// Changes properties of the system. A BMC that insists on the version of the system gets it.
    async fn patch(&self, system: &System, body: &Value) -> BmcResult {
        let etag = system.value["@odata.etag"].as_str().filter(|tag| is_header(tag));
        let first = self.call(Method::PATCH, &system.path, Some(body), None).await;
        match (first, etag) {
            (Err(BmcFailure::Failed(reason)), Some(etag))
                if reason.starts_with("status 412") || reason.starts_with("status 428") =>
            {
                self.call(Method::PATCH, &system.path, Some(body), Some(etag)).await?;
            }
            (first, _) => drop(first?),
        }
        Ok(None)
    }

    async fn get(&self, path: &str) -> Result<Value, BmcFailure> {
        self.call(Method::GET, path, None, None).await
    }

    /// Sends one HTTP request. A change without an answer may have an effect.
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        etag: Option<&str>,
    ) -> Result<Value, BmcFailure> {
        let is_change = method != Method::GET;
        let lost = |reason: String| {
            if is_change { BmcFailure::Unanswered(reason) } else { BmcFailure::Failed(reason) }
        };
        let mut request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header("host", &self.host)
            .header("authorization", &self.authorization)
            .header("accept", "application/json")
            .header("odata-version", "4.0")
            .header("connection", "close");
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        if let Some(etag) = etag {
            request = request.header("if-match", etag);
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| failed(error.to_string()))?;
        let exchange = async {
            let response = self.client.send(request).await.map_err(|error| {
                let reason = with_causes(&error);
                if is_unsent(&error) { failed(reason) } else { lost(reason) }
            })?;
            let status = response.status();
            let body = collect(response.into_body(), MAX_ANSWER).await;
            let body = body.map_err(|error| lost(error.to_string()))?;
            Ok::<_, BmcFailure>((status, body))
        };
        // The limit of a connection is shorter: at the end of this one, the request is sent.
        let answered = timeout(self.limit, exchange).await;
        let late = |_| lost(format!("no answer within {} s", self.limit.as_secs()));
        let (status, body) = answered.map_err(late)??;
        // An empty or invalid body of a change is no fault.
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        check_status(status, &method, &value)?;
        if !is_change && !value.is_object() {
            return Err(failed(format!("GET {path}: no JSON object")));
        }
        Ok(value)
    }
}

/// Whether a call failed before its request was sent.
fn is_unsent(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Connect { .. }
            | ClientError::Tls { .. }
            | ClientError::Timeout { stage: CallStage::Connect, .. }
    )
}

/// Returns the header `host` of a server: an IPv6 address has brackets.
fn host_header(server: &str) -> String {
    match server.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => server.to_owned(),
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let part = source.to_string();
        if !text.contains(&part) {
            text += &format!(": {part}");
        }
        cause = source.source();
    }
    text
}

/// Returns the failure of a response.
fn check_status(status: StatusCode, method: &Method, body: &Value) -> Result<(), BmcFailure> {
    if status.is_success() {
        return Ok(());
    }
    let extended = &body["error"]["@Message.ExtendedInfo"][0]["Message"];
    let message = extended.as_str().or(body["error"]["message"].as_str()).unwrap_or_default();
    let message: String =
        message.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    let reason = format!("status {} {message}", status.as_u16()).trim_end().to_owned();
    Err(match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            BmcFailure::Credentials(format!("the BMC refuses the user or the password: {reason}"))
        }
        StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
            if method != Method::GET =>
        {
            BmcFailure::Unsupported(reason)
        }
        _ => BmcFailure::Failed(reason),
    })
}

/// Returns the power state of a system. A machine that is being switched has its former state.
fn power_state(system: &Value) -> Result<PowerState, BmcFailure> {
    match system["PowerState"].as_str() {
        Some("On" | "PoweringOff" | "Paused") => Ok(PowerState::On),
        Some("Off" | "PoweringOn") => Ok(PowerState::Off),
        _ => Err(failed("the BMC reports no power state")),
    }
}

/// Returns the path of the only member of a collection.
fn only_member(collection: &Value) -> Result<String, BmcFailure> {
    let members = collection["Members"].as_array().map(Vec::as_slice).unwrap_or_default();
    let paths = members.iter().filter_map(|member| member["@odata.id"].as_str());
    let paths: Vec<&str> = paths.filter(|path| is_path(path)).collect();
    match paths.as_slice() {
        [only] => Ok((*only).to_owned()),
        [] => Err(failed("the BMC lists no system")),
        [first, ..] => Err(failed(format!(
            "the BMC has {} systems; add the path of one to its address, such as {first}",
            paths.len()
        ))),
    }
}

/// Whether a text can be a path of a request.
fn is_path(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-~%:".contains(&byte);
    text.starts_with('/')
        && !text.starts_with("//")
        && text.len() <= MAX_PATH
        && text.bytes().all(is_plain)
}

fn is_header(text: &str) -> bool {
    text.len() <= MAX_PATH && text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
}

fn tls_config(trust: &ServerTrust) -> Result<ClientConfig, rustls::Error> {
    match trust {
        ServerTrust::Certificates(certificates) => {
            pinned_config(certificates.clone(), &[&TLS13, &TLS12])
        }
        ServerTrust::Authorities(pem) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).flatten());
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            Ok(ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[&TLS13, &TLS12])?
                .with_root_certificates(roots)
                .with_no_client_auth())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_a_response_is_a_refusal_or_a_failure() {
        let check = |status: u16, method: &Method| {
            let body = json!({ "error": { "@Message.ExtendedInfo": [{ "Message": "a\nb" }] } });
            check_status(StatusCode::from_u16(status).unwrap(), method, &body)
        };
        assert!(check(202, &Method::POST).is_ok());
        assert!(matches!(check(401, &Method::GET), Err(BmcFailure::Credentials(_))));
        assert!(matches!(check(400, &Method::POST), Err(BmcFailure::Unsupported(_))));
        assert_eq!(check(404, &Method::GET), Err(failed("status 404 a b")));
    }

    #[test]
    fn host_header_of_an_ipv6_address_has_brackets() {
        for (server, header) in [
            ("fd00::7", "[fd00::7]"),
            ("[fd00::7]:8443", "[fd00::7]:8443"),
            ("bmc-1:8443", "bmc-1:8443"),
        ] {
            assert_eq!(host_header(server), header);
        }
    }

    #[test]
    fn any_json_is_a_state_or_a_failure() {
        for text in ["null", "[]", "{}", r#"{"PowerState":7}"#, r#"{"Members":[{}]}"#] {
            let value: Value = serde_json::from_str(text).unwrap();
            assert!(power_state(&value).is_err() && only_member(&value).is_err(), "{text}");
        }
        let member = |path: &str| json!({ "Members": [{ "@odata.id": path }] });
        assert_eq!(only_member(&member("/redfish/v1/Systems/1")).unwrap(), "/redfish/v1/Systems/1");
        for path in ["//evil/x", "http://evil/", "/a b", "/a\r\nx: y"] {
            assert!(only_member(&member(path)).is_err(), "{path}");
        }
        let two = json!({ "Members": [{ "@odata.id": "/a" }, { "@odata.id": "/b" }] });
        assert!(only_member(&two).unwrap_err().reason().contains("2 systems"));
    }
}
