//! Loading and unloading of models: on demand, within a limit of memory, and by age.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::sync::Mutex;

use super::entry::{AddedAdapter, KeepAlive, ModelEntry, ServedModel};
use super::kind::ServedKind;
use crate::error::{ApiError, ServeError};

/// Limits of the models that are loaded on demand.
///
/// ```
/// use std::time::Duration;
/// use tercet_serve::ResidencyLimits;
/// let limits = ResidencyLimits { memory_bytes: Some(8 << 30), idle: Some(Duration::from_secs(600)) };
/// assert_ne!(limits, ResidencyLimits::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidencyLimits {
    /// Maximum bytes of all loaded models, estimated: weights, caches and intermediate values. Before a
    /// model is loaded, those that were used the longest ago are unloaded. `None` is no limit.
    pub memory_bytes: Option<u64>,
    /// Time without requests after which a model is unloaded; `None` means never.
    pub idle: Option<Duration>,
}

/// Time between two looks at a model that is to be unloaded and still has requests.
const POLL: Duration = Duration::from_millis(5);
/// Maximum time between two searches for models that are unloaded by age.
const SWEEP: Duration = Duration::from_secs(1);

/// The models of a server with their limits.
#[derive(Clone, Default)]
pub(super) struct ModelResidency {
    pub(super) entries: Vec<Arc<ModelEntry>>,
    pub(super) limits: ResidencyLimits,
    /// Loads and unloads happen one after the other, in the order of their requests.
    turn: Arc<Mutex<()>>,
    counts: Arc<ResidencyCounts>,
}

/// Counts since the start of the server.
#[derive(Default)]
pub(super) struct ResidencyCounts {
    pub(super) loads: AtomicU64,
    pub(super) unloads: AtomicU64,
}

impl ModelResidency {
    pub(super) fn counts(&self) -> &ResidencyCounts {
        &self.counts
    }

    /// The model for a request, which is loaded if need be. If the client leaves meanwhile, loading goes
    /// on for the next request.
    ///
    /// # Errors
    /// - 503 if models that stay loaded leave no memory.
    /// - 504 if the requests of other models do not end in time.
    /// - 500 if the model cannot be loaded.
    pub(super) async fn lease(&self, entry: &Arc<ModelEntry>) -> Result<ServedModel, ApiError> {
        if let Some(model) = entry.lease() {
            return Ok(model);
        }
        let deadline = entry.source.as_ref().map(|source| source.options.deadline);
        let deadline = deadline.ok_or_else(ApiError::worker_lost)?;
        let (own, entry) = (self.clone(), Arc::clone(entry));
        let loading = tokio::spawn(async move {
            let _turn = own.turn.lock().await;
            match entry.lease() {
                Some(model) => Ok(model),
                None => own.load(&entry).await,
            }
        });
        match tokio::time::timeout(deadline, loading).await {
            Ok(loaded) => loaded.map_err(|_| ApiError::worker_lost())?,
            Err(_) => Err(ApiError::deadline_exceeded()),
        }
    }

    /// Loads a model. The caller has the turn.
    async fn load(&self, entry: &Arc<ModelEntry>) -> Result<ServedModel, ApiError> {
        let Some(source) = &entry.source else {
            return Err(ApiError::worker_lost());
        };
        let deadline = Instant::now() + source.options.deadline;
        let of = Arc::clone(entry);
        let opened = blocking(move || {
            let source = of.source.as_ref().ok_or_else(ApiError::worker_lost)?;
            let failed = |e: ServeError| ApiError::failed(&e);
            let (files, placement) = source.open(&of.name, &of.added()).map_err(failed)?;
            // The files may have changed since the start of the server.
            let kind = ServedKind::of(&of.name, &files, &placement, &source.options);
            if kind.map_err(failed)? != of.kind {
                return Err(changed(&of.name));
            }
            let bytes = of
                .kind
                .memory_bytes(&of.name, &files, &placement, &source.options);
            Ok((files, placement, bytes.map_err(failed)?))
        });
        let (files, placement, bytes) = opened.await??;
        self.make_room((entry, bytes), deadline).await?;
        let of = Arc::clone(entry);
        let loaded = blocking(move || {
            let source = of.source.as_ref().ok_or_else(ApiError::worker_lost)?;
            let loaded = ServedModel::load(&of.name, of.kind, files, placement, &source.options);
            loaded.map_err(|e| ApiError::failed(&e))
        });
        let model = loaded.await??;
        entry.set_loaded(model.clone(), bytes);
        self.counts.loads.fetch_add(1, Ordering::Relaxed);
        Ok(model)
    }

    /// Unloads models until `bytes` more fit the limit: those without requests first, then those that
    /// were used the longest ago.
    async fn make_room(
        &self,
        (entry, bytes): (&ModelEntry, u64),
        deadline: Instant,
    ) -> Result<(), ApiError> {
        let Some(limit) = self.limits.memory_bytes else {
            return Ok(());
        };
        loop {
            let used = self.entries.iter().filter_map(|other| other.usage());
            let used: u64 = used.map(|usage| usage.bytes).sum();
            if used.saturating_add(bytes) <= limit {
                return Ok(());
            }
            let loaded = self.entries.iter().filter(|other| other.source.is_some());
            let loaded = loaded.filter_map(|other| Some((other, other.usage()?)));
            let oldest = loaded.min_by_key(|(_, usage)| (!usage.is_idle, usage.last_used));
            let Some((oldest, _)) = oldest else {
                return Err(ApiError::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "no_memory",
                    format!(
                        "`{}` takes {bytes} bytes, and models that stay loaded take {used} of {limit}; start the server with a larger --max-model-memory",
                        entry.name
                    ),
                ));
            };
            self.unload(oldest, deadline).await?;
        }
    }

    /// Unloads a model when its requests have ended; new ones wait until it is loaded again. The caller
    /// has the turn.
    async fn unload(&self, entry: &ModelEntry, deadline: Instant) -> Result<(), ApiError> {
        entry.set_closing(true);
        // Undone also if this future is dropped.
        let reopen = ReopenOnDrop(entry);
        loop {
            if let Some(model) = entry.take_idle(Duration::ZERO) {
                blocking(move || drop(model)).await?;
                self.counts.unloads.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            if entry.usage().is_none() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                drop(reopen);
                return Err(ApiError::deadline_exceeded());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Unloads a model on request.
    ///
    /// # Errors
    /// 504 if its requests do not end in time.
    pub(super) async fn unload_now(
        &self,
        entry: &Arc<ModelEntry>,
        deadline: Duration,
    ) -> Result<(), ApiError> {
        let (own, entry) = (self.clone(), Arc::clone(entry));
        let until = Instant::now() + deadline;
        let unloading = tokio::spawn(async move {
            let _turn = own.turn.lock().await;
            own.unload(&entry, until).await
        });
        unloading.await.map_err(|_| ApiError::worker_lost())?
    }

    /// Changes the adapters that were added to a model. Its running requests end first, and the next ones
    /// wait until the model is loaded with the new adapters. If that fails, the old ones stay.
    ///
    /// # Errors
    /// The errors of [`Self::lease`], and those of `change`.
    pub(super) async fn change_adapters(
        &self,
        entry: &Arc<ModelEntry>,
        change: impl FnOnce(Vec<AddedAdapter>) -> Result<Vec<AddedAdapter>, ApiError> + Send + 'static,
    ) -> Result<(), ApiError> {
        let (own, entry) = (self.clone(), Arc::clone(entry));
        let changing = tokio::spawn(async move {
            let _turn = own.turn.lock().await;
            let deadline = entry.source.as_ref().map(|source| source.options.deadline);
            let deadline = Instant::now() + deadline.unwrap_or_default();
            let before = entry.added();
            let after = change(before.clone())?;
            // An adapter that cannot be read leaves the model loaded.
            let (of, checked) = (Arc::clone(&entry), after.clone());
            let read = blocking(move || match &of.source {
                Some(source) => source.open(&of.name, &checked).map(drop),
                None => Ok(()),
            });
            let read = read.await?;
            read.map_err(|e| ApiError::bad_request(tercet::one_line(&e)))?;
            own.unload(&entry, deadline).await?;
            entry.set_added(after);
            let loaded = own.load(&entry).await;
            if loaded.is_err() {
                entry.set_added(before);
            }
            loaded.map(drop)
        });
        changing.await.map_err(|_| ApiError::worker_lost())?
    }

    /// Time without requests after which a model is unloaded; `None` means never.
    pub(super) fn idle_limit(&self, entry: &ModelEntry) -> Option<Duration> {
        entry.source.as_ref()?;
        match entry.keep_alive() {
            Some(KeepAlive::For(time)) => Some(time),
            Some(KeepAlive::Forever) => None,
            None => self.limits.idle,
        }
    }

    /// Unloads models by age, forever.
    pub(super) async fn sweep(&self) {
        if self.entries.iter().all(|entry| entry.source.is_none()) {
            return std::future::pending().await;
        }
        let pause = self.limits.idle.map_or(SWEEP, |age| SWEEP.min(age / 4));
        loop {
            tokio::time::sleep(pause.max(POLL)).await;
            let Ok(_turn) = self.turn.try_lock() else {
                continue;
            };
            for entry in &self.entries {
                let Some(age) = self.idle_limit(entry) else {
                    continue;
                };
                if let Some(model) = entry.take_idle(age) {
                    // The result is not needed.
                    let _ = blocking(move || drop(model)).await;
                    self.counts.unloads.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Lets requests use a model again.
struct ReopenOnDrop<'a>(&'a ModelEntry);

impl Drop for ReopenOnDrop<'_> {
    fn drop(&mut self) {
        self.0.set_closing(false);
    }
}

fn changed(name: &str) -> ApiError {
    let message =
        format!("the files of `{name}` are now those of another kind of model; restart the server");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "engine_error", message)
}

/// Runs code that takes long away from the threads of the sockets.
async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(run).await;
    done.map_err(|_| ApiError::worker_lost())
}
