//! Downloads from a local server that behaves as the hub does.
#![allow(
    clippy::unwrap_used,
    reason = "test helpers panic on errors, but clippy does not see them as test functions"
)]

mod caches;
mod downloads;
mod faults;
mod refusals;
mod server;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use server::LocalHub;
use tercet_hub::{CachedModel, Hub, HubError, HubSettings, PullEvent, PullOptions};

/// A temporary folder of one test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tercet-hub-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Settings with small chunks and short waits.
fn settings(server: &LocalHub, cache: &Path) -> HubSettings {
    HubSettings {
        endpoint: server.endpoint.clone(),
        connections: 4,
        chunk_bytes: 10_000,
        attempts: 3,
        max_wait: Duration::from_secs(3),
        stall: Duration::from_secs(5),
        ..HubSettings::new(cache)
    }
}

fn hub(server: &LocalHub, scratch: &Scratch) -> Hub {
    Hub::new(settings(server, &scratch.0))
}

fn quiet(_: PullEvent<'_>) {}

fn pull(hub: &Hub, name: &str) -> Result<CachedModel, HubError> {
    hub.pull(&name.parse()?, &PullOptions::default(), &quiet)
}

/// Pulls a model and returns the events as text too.
fn watched(hub: &Hub, name: &str) -> (Result<CachedModel, HubError>, Vec<String>) {
    let events = Mutex::new(Vec::new());
    let note = |event: PullEvent<'_>| events.lock().unwrap().push(format!("{event:?}"));
    let pulled = hub.pull(&name.parse().unwrap(), &PullOptions::default(), &note);
    (pulled, events.into_inner().unwrap())
}

/// Bytes that do not repeat, different for each seed.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// The folder of a repository in the cache.
fn folder(scratch: &Scratch, repo: &str) -> PathBuf {
    let name = format!("models--{}", repo.replace('/', "--"));
    scratch.0.join(name)
}

/// The names in a folder, sorted; none if there is no folder.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Whether nothing of a model is visible under its name.
fn is_absent(hub: &Hub, scratch: &Scratch, name: &str) -> bool {
    let repo = name.split(':').next().unwrap();
    let dir = folder(scratch, repo);
    hub.find(name).unwrap().is_none()
        && names(&dir.join("snapshots")).is_empty()
        && names(&dir.join("refs")).is_empty()
}
