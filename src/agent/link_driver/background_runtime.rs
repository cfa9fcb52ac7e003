//! Threads for VMs, so that their blocking file operations do not delay heartbeats.

use std::io;
use tokio::runtime::{Builder, Runtime};

/// Number of threads: a slow disk blocks only some of them.
const THREADS: usize = 4;

/// A separate runtime. Dropping it does not wait for its tasks.
pub struct BackgroundRuntime(Option<Runtime>);

impl BackgroundRuntime {
    pub fn new() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("mesh-agent")
            .enable_all()
            .build()?;
        Ok(BackgroundRuntime(Some(runtime)))
    }

    /// Runs a function whose spawned tasks run on these threads.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = self.0.as_ref().map(Runtime::enter);
        work()
    }
}

impl Drop for BackgroundRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
