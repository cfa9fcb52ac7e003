//! Runs one call to the central node at a time and returns its result as an event.

use super::{
    Completion, ConnectionKind, Driver, FACTS_TIMEOUT, SEND_TIMEOUT, side_effects::source,
};
use crate::{
    facts, files,
    link::call::{self, CallError, Endpoint},
    link::keys::KeyError,
    link_state::Event,
};
use futures_util::SinkExt as _;
use meshd_proto::{
    EnrolRequest, EnrolResponse, Facts, FromAgent, Hello, PendingHello, RenewRequest,
};
use meshd_types::Secret;
use serde::Serialize;
use std::future::Future;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::timeout,
};
use tokio_tungstenite::tungstenite::Message;

impl Driver {
    pub(super) fn enrol(&mut self) {
        let Some(token) = self.boot.token.clone() else {
            return self.events.push_back(Event::Refused("there is no token".into()));
        };
        let version = meshd_proto::VERSION;
        let node = self.config.node;
        let session = self.boot.session;
        let request = self.keys.request().map(|csr_pem| EnrolRequest {
            version,
            node,
            session,
            token,
            csr_pem,
        });
        self.certify(meshd_proto::ENROL_PATH, request);
    }

    /// Replaces the token of this boot in its file, so that a restarted agent enrols with it, or
    /// does not enrol again.
    pub(super) fn set_token(&mut self, token: Option<Secret<String>>) {
        self.boot.token = token;
        if let Err(error) = files::store_boot(&self.options.boot_file, &self.boot) {
            tracing::error!(%error, cause = source(&error), "cannot replace the token in its file");
        }
    }

    pub(super) fn renew(&mut self) {
        let request = self
            .keys
            .request()
            .map(|csr_pem| RenewRequest { version: meshd_proto::VERSION, csr_pem });
        self.certify(meshd_proto::RENEW_PATH, request);
    }

    pub(super) fn endpoint(&self) -> Result<Endpoint, KeyError> {
        Ok(Endpoint { config: self.config.clone(), tls: self.keys.tls()? })
    }

    fn certify<Q: Serialize + Send + Sync + 'static>(
        &mut self,
        path: &'static str,
        request: Result<Q, KeyError>,
    ) {
        let prepared = request.and_then(|request| Ok((request, self.endpoint()?)));
        self.call(async move {
            let (request, endpoint) =
                prepared.map_err(|error| CallError::Failed(error.to_string()))?;
            let response: EnrolResponse = call::post(&endpoint, path, &request).await?;
            Ok(Completion::Event(Event::Certified(response)))
        });
    }

    pub(super) fn open_link(&mut self) {
        let endpoint = self.endpoint();
        self.call(async move {
            let endpoint = endpoint.map_err(|error| CallError::Refused(error.to_string()))?;
            let socket = call::open(&endpoint, meshd_proto::LINK_PATH).await?;
            Ok(Completion::Open(Box::new(socket), ConnectionKind::Link))
        });
    }

    pub(super) fn open_pending(&mut self, reason: String) {
        tracing::warn!(reason, "requesting approval");
        let prepared = self.keys.request().and_then(|csr_pem| Ok((csr_pem, self.endpoint()?)));
        let config = self.config.clone();
        let boot = self.boot.clone();
        let tree = self.tree.clone();
        let vms = self.options.vm_dir.clone();
        self.call(async move {
            let (csr_pem, endpoint) =
                prepared.map_err(|error| CallError::Failed(error.to_string()))?;
            let version = meshd_proto::VERSION;
            let node = config.node;
            let session = boot.session;
            let collect =
                move || facts::collect(&tree, &vms, Some(&config), Some(&boot), &Facts::default());
            let facts = spawn_blocking(collect).await.unwrap_or_default();
            let hello = PendingHello { version, node, session, csr_pem, facts };
            let text = serde_json::to_string(&hello)
                .map_err(|error| CallError::Failed(error.to_string()))?;
            let mut socket = call::open(&endpoint, meshd_proto::PENDING_PATH).await?;
            let sent = timeout(SEND_TIMEOUT, socket.send(Message::Text(text.into()))).await;
            match sent {
                Ok(Ok(())) => Ok(Completion::Open(Box::new(socket), ConnectionKind::Pending)),
                Ok(Err(error)) => Err(CallError::Failed(error.to_string())),
                Err(_) => Err(CallError::Failed("cannot send the hello: timeout".into())),
            }
        });
    }

    /// Collects the facts for a hello in the background. After [`FACTS_TIMEOUT`] the hello repeats
    /// the facts of the last one.
    pub(super) fn collect_facts(&mut self) {
        let tree = self.tree.clone();
        let config = self.config.clone();
        let boot = self.boot.clone();
        let vms = self.options.vm_dir.clone();
        let last = self.facts.clone();
        let fallback = last.clone();
        let collect = move || facts::collect(&tree, &vms, Some(&config), Some(&boot), &fallback);
        // Closing the connection cancels this task.
        self.call = JoinSet::new();
        self.call.spawn(async move {
            let facts = match timeout(FACTS_TIMEOUT, spawn_blocking(collect)).await {
                Ok(Ok(facts)) => facts,
                _ => last,
            };
            Completion::Facts(Box::new(facts))
        });
    }

    pub(super) async fn send_hello(&mut self, facts: Facts) {
        // Also if the facts could not be collected.
        let facts = Facts { task_input: true, ..facts };
        self.facts = facts.clone();
        let node = self.config.node;
        let session = self.boot.session;
        let hello = Hello { version: meshd_proto::VERSION, node, session, facts };
        self.send_message(&FromAgent::Hello(Box::new(hello))).await;
        self.set_endpoint();
    }

    fn call(&mut self, call: impl Future<Output = Result<Completion, CallError>> + Send + 'static) {
        self.socket = None;
        self.call = JoinSet::new();
        self.call.spawn(async {
            call.await.unwrap_or_else(|error| {
                Completion::Event(match error {
                    CallError::Refused(_) => Event::Refused(error.to_string()),
                    CallError::StaleCa(_) => Event::StaleCa(error.to_string()),
                    CallError::Failed(_) => Event::ConnectionLost(error.to_string()),
                })
            })
        });
    }
}
