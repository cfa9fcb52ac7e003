//! Files of a boot: a completed fetch is recorded as a stage of the boot session.

use crate::{
    boot::BootService,
    environment::{lan_client::LanClient, records::record_stage},
};
use bytes::Bytes;
use meshd_model::fleet::Stage;
use meshd_store::{Model, StoreError};
use meshd_types::{BootSessionId, Digest, MacAddr, failpoint};

/// A completely fetched file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    Loader,
    /// A part of an image.
    Blob(Digest),
}

impl BootService {
    /// Records a completed fetch once per boot session. An address without boot session is no
    /// error: these files are public. The machine of the session is checked on the wire, so that
    /// nobody else writes its record.
    pub async fn record_fetch(&self, client: impl Into<LanClient>, file: Fetched) {
        let client = client.into();
        let from = client.ipv4();
        let Some(stage) = self.stage_of(file) else { return };
        let session = self.env.store.read(|model| {
            let session = model.session_at(from)?;
            Some((session.mac, session.reached(stage).is_some()))
        });
        let Some((own, is_recorded)) = session else { return };
        let is_own = |mac: &MacAddr| *mac == own || !failpoint::defends("fetched-neighbour");
        if self.env.check_neighbour(&client, is_own).await.is_err() {
            return;
        }
        let recorded_mac = Some(own).filter(|_| is_recorded);
        // Repeated fetches in one boot cause no write.
        if let Some(mac) = recorded_mac.filter(|_| failpoint::defends("fetched-once")) {
            return self.update_queue(mac, stage);
        }
        self.record_loaded(stage, |model| model.session_at(from).map(|session| session.id)).await;
    }

    /// Records a loaded part as a stage of a session, and in the boot queue.
    pub(super) async fn record_loaded(
        &self,
        stage: Stage,
        session: impl FnOnce(&Model) -> Option<BootSessionId>,
    ) {
        let now = self.env.now();
        let recorded = self.env.store.commit(|tx| {
            let Some(id) = session(tx.before()) else { return Ok(None) };
            record_stage(tx, id, stage, now);
            Ok::<_, StoreError>(tx.session(id).map(|session| session.mac))
        });
        match recorded.await {
            Ok(Some(mac)) => self.update_queue(mac, stage),
            Ok(None) => {}
            Err(error) => tracing::error!(
                error = &error as &dyn std::error::Error,
                "cannot record a boot stage"
            ),
        }
    }

    fn stage_of(&self, file: Fetched) -> Option<Stage> {
        let digest = match file {
            Fetched::Loader => return Some(Stage::Loader),
            Fetched::Blob(digest) => digest,
        };
        let catalog = self.env.catalog();
        catalog.served().find_map(|image| {
            let parts = image.manifest.parts.parts();
            parts.into_iter().find(|part| part.blob.digest == digest).map(|part| part.stage)
        })
    }

    pub fn loader(&self, name: &str) -> Option<Bytes> {
        self.loaders.get(name).cloned()
    }
}
