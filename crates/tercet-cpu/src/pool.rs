//! Where parallel work runs: the team of the process, or one of the backend's own.

use std::sync::Arc;

use crate::kernels::team::{self, Team};

/// A team of threads; clones are the same team.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool(Option<Arc<Team>>);

impl Pool {
    /// A team of its own.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub(crate) fn of(threads: usize) -> std::io::Result<Pool> {
        Ok(Pool(Some(Arc::new(Team::new(threads)?))))
    }

    fn team(&self) -> &Team {
        match &self.0 {
            Some(team) => team,
            None => team::of_process(),
        }
    }

    /// How many threads work at once.
    pub(crate) fn threads(&self) -> usize {
        self.team().threads()
    }

    /// Runs `f` on this thread; the parallel loops in it are spread over the team.
    pub(crate) fn install<R>(&self, f: impl FnOnce() -> R) -> R {
        self.team().install(f)
    }
}
