//! Runs one call to the central node at a time and returns its result as an event.

use super::{Done, Driver, FACTS_PATIENCE, Kind, SEND_TIMEOUT, side_effects::source};
use crate::{
    facts, files,
    link::call::{self, CallError},
    link::keys::KeyError,
    link_state::Event,
};
use futures_util::SinkExt as _;
use meshd_proto::{EnrolRequest, EnrolResponse, Facts, FromAgent, Hello, PendingHello, RenewRequest};
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
        let (version, node, session) = (meshd_proto::VERSION, self.config.node, self.boot.session);
        let request = self.keys.request().map(|csr_pem| EnrolRequest { version, node, session, token, csr_pem });
        self.certify(meshd_proto::ENROL_PATH, request);
    }

    /// Stores the token of this boot, so that a restarted agent finds it.
    pub(super) fn keep_token(&mut self, token: Secret<String>) {
        self.boot.token = Some(token);
        if let Err(error) = files::keep_boot(&self.options.boot_file, &self.boot) {
            tracing::error!(%error, cause = source(&error), "a restart of the agent will not know the new token");
        }
    }

    /// Removes the token that was used.
    pub(super) fn forget_token(&mut self) {
        if let Err(error) = files::forget_token(&self.options.boot_file, &self.boot) {
            tracing::error!(%error, cause = source(&error), "the used token stays in its file");
        }
        self.boot.token = None;
    }

    pub(super) fn renew(&mut self) {
        let request = self.keys.request().map(|csr_pem| RenewRequest { version: meshd_proto::VERSION, csr_pem });
        self.certify(meshd_proto::RENEW_PATH, request);
    }

    fn certify<Q: Serialize + Send + Sync + 'static>(&mut self, path: &'static str, request: Result<Q, KeyError>) {
        let config = self.config.clone();
        let prepared = request.and_then(|request| Ok((request, self.keys.tls()?)));
        self.call(async move {
            let (request, tls) = prepared.map_err(|error| CallError::Lost(error.to_string()))?;
            let response: EnrolResponse = call::post(&config, tls, path, &request).await?;
            Ok(Done::Event(Event::Certified(response)))
        });
    }

    pub(super) fn open_link(&mut self) {
        let (config, tls) = (self.config.clone(), self.keys.tls());
        self.call(async move {
            let tls = tls.map_err(|error| CallError::Refused(error.to_string()))?;
            Ok(Done::Open(Box::new(call::open(&config, tls, meshd_proto::LINK_PATH).await?), Kind::Link))
        });
    }

    pub(super) fn open_pending(&mut self, reason: String) {
        tracing::warn!(reason, "asking the operator for approval: meshd node approve {}", self.config.node);
        let prepared = self.keys.request().and_then(|csr_pem| Ok((csr_pem, self.keys.tls()?)));
        let (config, boot, tree) = (self.config.clone(), self.boot.clone(), self.tree.clone());
        let vms = self.options.vm_dir.clone();
        self.call(async move {
            let (csr_pem, tls) = prepared.map_err(|error| CallError::Lost(error.to_string()))?;
            let (own, part) = (config.clone(), boot.clone());
            let facts =
                spawn_blocking(move || facts::collect(&tree, &vms, Some(&own), Some(&part))).await.unwrap_or_default();
            let (version, node, session) = (meshd_proto::VERSION, config.node, boot.session);
            let hello = PendingHello { version, node, session, csr_pem, facts };
            let text = serde_json::to_string(&hello).map_err(|error| CallError::Lost(error.to_string()))?;
            let mut socket = call::open(&config, tls, meshd_proto::PENDING_PATH).await?;
            let sent = timeout(SEND_TIMEOUT, socket.send(Message::Text(text.into()))).await;
            match sent {
                Ok(Ok(())) => Ok(Done::Open(Box::new(socket), Kind::Pending)),
                Ok(Err(error)) => Err(CallError::Lost(error.to_string())),
                Err(_) => Err(CallError::Lost("the hello did not leave in time".into())),
            }
        });
    }

    /// Collects the facts for a hello in the background. The hello is sent when they are complete, or after [`FACTS_PATIENCE`] with the
    /// facts of the last hello.
    pub(super) fn greet(&mut self) {
        let (tree, config, boot) = (self.tree.clone(), self.config.clone(), self.boot.clone());
        let (vms, last) = (self.options.vm_dir.clone(), self.facts.clone());
        let known = last.clone();
        let collect = move || facts::collect_again(&tree, &vms, Some(&config), Some(&boot), &known);
        // Cancelled with its connection.
        self.call = JoinSet::new();
        self.call.spawn(async move {
            let facts = match timeout(FACTS_PATIENCE, spawn_blocking(collect)).await {
                Ok(Ok(facts)) => facts,
                _ => last,
            };
            Done::Facts(Box::new(facts))
        });
    }

    /// The hello message of a link.
    pub(super) async fn hello(&mut self, facts: Facts) {
        self.facts = facts.clone();
        let (node, session) = (self.config.node, self.boot.session);
        let hello = Hello { version: meshd_proto::VERSION, node, session, facts };
        self.send_message(&FromAgent::Hello(Box::new(hello))).await;
        self.set_endpoint();
    }

    fn call(&mut self, call: impl Future<Output = Result<Done, CallError>> + Send + 'static) {
        self.socket = None;
        self.call = JoinSet::new();
        self.call.spawn(async {
            call.await.unwrap_or_else(|error| {
                Done::Event(match error {
                    CallError::Refused(_) => Event::Refused(error.to_string()),
                    CallError::StaleCa(_) => Event::StaleCa(error.to_string()),
                    CallError::Lost(_) => Event::Lost(error.to_string()),
                })
            })
        });
    }
}
