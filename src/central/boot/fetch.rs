//! Files of a boot: a completed fetch is recorded as a stage of the boot session.

use crate::{boot::BootService, environment::records::reach};
use bytes::Bytes;
use meshd_model::fleet::Stage;
use meshd_types::{Digest, fail};
use std::net::Ipv4Addr;

/// A completely fetched file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    Loader,
    /// A part of an image.
    Blob(Digest),
}

impl BootService {
    /// Records a completed fetch once per boot session. An address without boot session is no error: these files are public.
    pub async fn fetched(&self, from: Ipv4Addr, what: Fetched) {
        let Some(stage) = self.stage_of(what) else { return };
        let now = self.env.now();
        let known = self.env.store.read(|model| {
            let session = model.session_at(from).filter(|session| session.reached(stage).is_some());
            session.map(|session| session.mac)
        });
        // Repeated fetches in one boot cause no write.
        if let Some(mac) = known.filter(|_| fail::defends("fetched-once")) {
            return self.loaded(mac, stage);
        }
        let marked = self
            .env
            .store
            .commit(|tx| {
                let Some((id, mac)) = tx.before().session_at(from).map(|session| (session.id, session.mac)) else {
                    return Ok(None);
                };
                reach(tx, id, stage, now);
                Ok::<_, meshd_store::StoreError>(Some(mac))
            })
            .await;
        match marked {
            Ok(Some(mac)) => self.loaded(mac, stage),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "cannot record a boot stage");
            }
        }
    }

    fn stage_of(&self, what: Fetched) -> Option<Stage> {
        let digest = match what {
            Fetched::Loader => return Some(Stage::Loader),
            Fetched::Blob(digest) => digest,
        };
        let catalog = self.env.catalog();
        catalog.served().find_map(|image| {
            let parts = &image.manifest.parts;
            [
                (parts.kernel.digest, Stage::Kernel),
                (parts.initramfs.digest, Stage::Initramfs),
                (parts.packages.digest, Stage::Packages),
                (parts.modloop.digest, Stage::Modloop),
            ]
            .into_iter()
            .find_map(|(part, stage)| (part == digest).then_some(stage))
        })
    }

    /// A loader by its file name.
    pub fn loader(&self, name: &str) -> Option<Bytes> {
        self.loaders.get(name).cloned()
    }
}
