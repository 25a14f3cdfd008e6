//! Thread pool of a backend: the caller's rayon pool or a private one.

use std::sync::Arc;

use crate::kernels::worker_pool::{self, WorkerPool, WorkerPoolShared};

/// A private worker pool, or `None` for the caller's rayon pool. Clones share the pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct HelperPool(Option<Arc<WorkerPool>>);

impl HelperPool {
    /// A private pool.
    ///
    /// # Errors
    /// If the system cannot create the threads.
    pub(crate) fn with_threads(threads: usize) -> std::io::Result<HelperPool> {
        Ok(HelperPool(Some(Arc::new(WorkerPool::new(threads)?))))
    }

    fn shared(&self) -> Arc<WorkerPoolShared> {
        match &self.0 {
            Some(team) => team.shared(),
            None => worker_pool::caller_pool(),
        }
    }

    /// Number of threads, including this one, that can work in parallel on a job of this thread.
    pub(crate) fn threads(&self) -> usize {
        self.shared().threads()
    }

    /// Runs `f` on this thread. `f` gets the number of threads, at most `most`, that parallel loops
    /// inside `f` use.
    pub(crate) fn install<R>(&self, most: usize, f: impl FnOnce(usize) -> R) -> R {
        let shared = self.shared();
        let threads = shared.threads().min(most);
        worker_pool::install(shared, threads, || f(threads))
    }
}
