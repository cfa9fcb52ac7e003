//! Fields of a submitted form or query, and the results of forms that were sent.

use meshd_types::Digest;
use serde::Deserialize;
use std::{
    collections::VecDeque,
    future::{Future, pending},
    panic::resume_unwind,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::OnceCell;

/// Maximum number of results that are kept. A new one replaces the oldest one.
const MAX_RESULTS: usize = 64;

/// Fields in the order in which the browser sent them; a name may occur several times.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Fields(pub(crate) Vec<(String, String)>);

impl Fields {
    /// Returns the first value of a name without surrounding white space; empty if there is none.
    pub(crate) fn text<'a>(&'a self, name: &'a str) -> &'a str {
        self.all(name).next().unwrap_or_default()
    }

    /// Returns the first value of a name as it was sent; empty if there is none.
    pub(crate) fn untrimmed<'a>(&'a self, name: &str) -> &'a str {
        let found = self.0.iter().find(|(field, _)| field == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    /// Returns all values of a name without surrounding white space.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, value)| value.trim())
    }

    /// Returns true if a checkbox is ticked.
    pub(crate) fn is_ticked(&self, name: &str) -> bool {
        !self.text(name).is_empty()
    }
}

/// A form, and its result once it has one.
type SentForm<T> = (Digest, Arc<OnceCell<T>>);

/// Results of forms that meshd executes once: a form that is sent again, by a double click or a
/// reload, has the result of the first one. Lost with the sessions that sent them.
#[derive(Clone)]
pub(crate) struct SentForms<T>(Arc<Mutex<VecDeque<SentForm<T>>>>);

impl<T> Default for SentForms<T> {
    fn default() -> Self {
        SentForms(Arc::default())
    }
}

impl<T: Clone + Send + Sync + 'static> SentForms<T> {
    /// Returns the result of a form, which it may have already. A browser that closes its
    /// connection, as after a double click, does not end the work. An error is not a result: the
    /// form may be sent again.
    pub(crate) async fn execute_once<E: Send + 'static>(
        &self,
        form: Digest,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        let result = self.result_of(form);
        let task = async move { result.get_or_try_init(|| work).await.cloned() };
        match tokio::spawn(task).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The program ends.
                Err(_) => pending().await,
            },
        }
    }

    /// Returns the result of work that is shared with all who ask for it while it runs. It is
    /// forgotten then: the API knows the orders that it executed, by their keys.
    pub(crate) async fn share<E: Send + 'static>(
        &self,
        form: Digest,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        let sent = self.clone();
        let work = async move {
            let result = work.await;
            sent.forget(form);
            result
        };
        self.execute_once(form, work).await
    }

    fn forget(&self, form: Digest) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(sent, _)| *sent != form);
    }

    fn result_of(&self, form: Digest) -> Arc<OnceCell<T>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = all.iter().find(|(sent, _)| *sent == form) {
            return known.clone();
        }
        if all.len() >= MAX_RESULTS {
            all.pop_front();
        }
        let result = Arc::<OnceCell<T>>::default();
        all.push_back((form, result.clone()));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_are_kept_up_to_a_bound_and_errors_are_not() {
        let sent = SentForms::default();
        let form = |number: usize| Digest::of(&number.to_be_bytes());
        let refused = sent.execute_once(form(0), async { Err::<usize, &str>("no") }).await;
        assert_eq!(refused, Err("no"));
        for number in 0..=MAX_RESULTS {
            assert_eq!(
                sent.execute_once(form(number), async move { Ok::<_, ()>(number) }).await,
                Ok(number)
            );
        }
        let again = async |number: usize| {
            sent.execute_once(form(number), async { Ok::<_, ()>(1000) }).await
        };
        assert_eq!(again(1).await, Ok(1));
        assert_eq!(again(0).await, Ok(1000), "the oldest one is gone");
        assert_eq!(sent.0.lock().expect("no panic").len(), MAX_RESULTS);
    }

    #[tokio::test]
    async fn shared_result_is_forgotten_when_the_work_ends() {
        let sent = SentForms::default();
        let form = Digest::of(b"form");
        let work = |number: usize| async move {
            tokio::task::yield_now().await;
            Ok::<_, ()>(number)
        };
        let both = tokio::join!(sent.share(form, work(1)), sent.share(form, work(2)));
        assert_eq!(both, (Ok(1), Ok(1)));
        assert_eq!(sent.share(form, work(3)).await, Ok(3));
        assert!(sent.0.lock().expect("no panic").is_empty());
    }
}
