//! Where parallel work runs: the rayon pool of the caller, or one of the backend's own.

use std::sync::Arc;

use crate::kernels::team::{self, Shared, Team};

/// Where helpers come from; clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool(Option<Arc<Team>>);

impl Pool {
    /// A pool of its own.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub(crate) fn of(threads: usize) -> std::io::Result<Pool> {
        Ok(Pool(Some(Arc::new(Team::new(threads)?))))
    }

    fn shared(&self) -> Arc<Shared> {
        match &self.0 {
            Some(team) => team.shared(),
            None => team::of_caller(),
        }
    }

    /// How many threads work at once for a caller on this thread.
    pub(crate) fn threads(&self) -> usize {
        self.shared().threads()
    }

    /// Runs `f` on this thread, with the number of threads, at most `most`, that its parallel loops are spread over.
    pub(crate) fn install<R>(&self, most: usize, f: impl FnOnce(usize) -> R) -> R {
        let shared = self.shared();
        let threads = shared.threads().min(most);
        team::install(shared, threads, || f(threads))
    }
}
