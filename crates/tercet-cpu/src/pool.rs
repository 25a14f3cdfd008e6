//! Where parallel work runs: rayon's global pool, or one of the backend's own.

use std::sync::Arc;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// A pool of threads; clones are the same pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool(Option<Arc<ThreadPool>>);

impl Pool {
    /// A pool of its own.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub(crate) fn of(threads: usize) -> Result<Pool, rayon::ThreadPoolBuildError> {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build()?;
        Ok(Pool(Some(Arc::new(pool))))
    }

    /// How many threads work at once.
    pub(crate) fn threads(&self) -> usize {
        match &self.0 {
            Some(pool) => pool.current_num_threads(),
            None => rayon::current_num_threads(),
        }
    }

    /// Runs `f` on a thread of the pool, so that the parallel loops in it pay for entering once.
    pub(crate) fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.0 {
            Some(pool) => pool.install(f),
            None => rayon::join(f, || ()).0,
        }
    }
}
