//! Logins of BMCs: a login that was refused is not sent again for a while, also after a restart,
//! because BMCs lock accounts.
//!
//! A try is stored before it is sent, unless this process has seen the BMC accept the login. So a
//! process that ends again and again during a try sends two of them. The record goes when the BMC
//! accepts the login or fails otherwise.

use super::{Bmcs, ResolvedBmc};
use meshd_bmc::Bmc;
use meshd_model::operations::{BmcFailure, LoginAttempt, LoginHeld, MAX_LOGIN_ATTEMPTS};
use meshd_store::StoreError;
use meshd_trust::MarkKey;
use meshd_types::{Digest, Secret, failpoint};
use std::{collections::BTreeMap, sync::OnceLock};

/// Logins that BMCs have accepted since the start.
#[derive(Default)]
pub(super) struct AcceptedLogins(BTreeMap<Digest, Digest>);

impl AcceptedLogins {
    fn has(&self, login: &LoginOfBmc) -> bool {
        self.0.get(&login.bmc) == Some(&login.mark)
    }

    fn insert(&mut self, login: &LoginOfBmc) {
        if self.0.len() >= MAX_LOGIN_ATTEMPTS {
            // Each try of them is stored again.
            self.0.clear();
        }
        self.0.insert(login.bmc, login.mark);
    }
}

/// A login at one BMC, as digests.
pub(super) struct LoginOfBmc {
    /// Of host and port.
    bmc: Digest,
    /// Of user and password, with the key of the site.
    mark: Digest,
}

/// The key of the site's marks, read at the first use.
#[derive(Default)]
pub(super) struct LoginKey(OnceLock<MarkKey>);

impl Bmcs {
    /// Stores the next try of a login. Returns `None` for a BMC without a login.
    ///
    /// # Errors
    /// The BMC refused the login a moment ago, or the try cannot be stored: nothing is sent.
    pub(super) async fn begin_login(
        &self,
        resolved: &ResolvedBmc,
        bmc: &Bmc,
    ) -> Result<Option<LoginOfBmc>, BmcFailure> {
        let Some(login) = &bmc.login else { return Ok(None) };
        // Safe: only a keyed digest is stored.
        let pair = format!("{}\n{}", login.user, login.password.expose());
        let mark = self.login_key().await?.mark("login of a BMC", &Secret::new(pair));
        let login = LoginOfBmc { bmc: Digest::of(resolved.key.as_bytes()), mark };
        if self.accepted.lock().has(&login) {
            return Ok(Some(login));
        }
        let now = self.env.now();
        let begun = self.env.store.commit(|tx| {
            let next = LoginAttempt::next(tx.login_attempt(login.bmc), login.mark, now);
            Ok::<_, StoreError>(next.map(|attempt| tx.put_login_attempt(login.bmc, attempt)))
        });
        let begun: Result<(), LoginHeld> = begun.await.map_err(|error| unstored(&error))?;
        begun.map_err(|held| BmcFailure::Credentials(held.to_string()))?;
        failpoint::point("login-begun");
        Ok(Some(login))
    }

    /// Stores how a try of a login ended, before anything else learns of it.
    pub(super) async fn end_login(&self, login: LoginOfBmc, failure: Option<&BmcFailure>) {
        if let None | Some(BmcFailure::Unsupported(_)) = failure {
            self.accepted.lock().insert(&login);
        }
        let is_refused = matches!(failure, Some(BmcFailure::Credentials(_)));
        let now = self.env.now();
        let is_stored = self.env.store.read(|model| model.login_attempt(login.bmc).is_some());
        if !is_refused && !is_stored {
            return;
        }
        let ended = self.env.store.commit(|tx| {
            if is_refused {
                tx.put_login_attempt(login.bmc, LoginAttempt::refused(login.mark, now));
            } else {
                tx.remove_login_attempt(login.bmc);
            }
            Ok::<_, StoreError>(())
        });
        // The try is stored already, unless the BMC had accepted the login before.
        crate::environment::alarms::log_failure(ended.await, "cannot store the end of a login");
    }

    async fn login_key(&self) -> Result<MarkKey, BmcFailure> {
        if let Some(key) = self.login_key.0.get() {
            return Ok(key.clone());
        }
        let folder = self.env.site().state_dir.clone();
        let random = self.env.random();
        let read = tokio::task::spawn_blocking(move || MarkKey::load_or_create(&folder, random));
        let failed = |cause: String| BmcFailure::Failed(format!("the key of secrets: {cause}"));
        let key = read.await.map_err(|error| failed(error.to_string()))?;
        let key = key.map_err(|error| failed(error.to_string()))?;
        Ok(self.login_key.0.get_or_init(|| key).clone())
    }
}

fn unstored(error: &StoreError) -> BmcFailure {
    BmcFailure::Failed(format!("nothing was sent, because the try cannot be stored: {error}"))
}
