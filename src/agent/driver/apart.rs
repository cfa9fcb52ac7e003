//! A second thread for VMs, so that their blocking file operations do not delay heartbeats.

use std::io;
use tokio::runtime::{Builder, Runtime};

/// Threads of virtual machines: one that a disk holds up leaves the others.
const THREADS: usize = 4;

/// A runtime of its own, given up without waiting when it is dropped.
pub struct Apart(Option<Runtime>);

impl Apart {
    /// Starts it.
    ///
    /// # Errors
    /// There are no threads for it.
    pub fn new() -> io::Result<Self> {
        let runtime =
            Builder::new_multi_thread().worker_threads(THREADS).thread_name("mesh-agent").enable_all().build()?;
        Ok(Apart(Some(runtime)))
    }

    /// Does something there: tasks that it spawns run on these threads.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = self.0.as_ref().map(Runtime::enter);
        work()
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
