//! Metrics in Prometheus' text format:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tercet_models::PrefixStoreStats;

/// Current usage of the workers or slots of a model.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStatus {
    /// Workers or slots.
    pub workers: usize,
    /// Workers or slots in use.
    pub busy: usize,
    /// Requests that wait for one.
    pub waiting: usize,
}

/// A gauge: its name, help text and getter.
type GaugeSpec = (&'static str, &'static str, fn(&PoolStatus) -> usize);

/// The loaded models, and counts of loads and unloads.
pub(crate) struct ModelMetrics<'a> {
    /// Names, slots and estimated bytes.
    pub(crate) loaded: Vec<(&'a str, PoolStatus, u64)>,
    pub(crate) loads: u64,
    pub(crate) unloads: u64,
}

/// Counters since the start of the server.
#[doc(hidden)]
#[derive(Default)]
pub struct ServerMetrics {
    /// Count and total time, keyed by route and status.
    requests: Mutex<BTreeMap<(String, u16), (u64, Duration)>>,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) generated_tokens: AtomicU64,
    /// Prompt tokens that a cache had.
    pub(crate) cached_tokens: AtomicU64,
    /// Tokens that were read although an earlier sequence had read them.
    pub(crate) reread_tokens: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) deadline_exceeded: AtomicU64,
    /// Sequences and jobs that started.
    pub(crate) started: AtomicU64,
    /// Microseconds that they waited.
    pub(crate) queue_micros: AtomicU64,
    pub(crate) queue_timeouts: AtomicU64,
    /// Requests without a place in a queue.
    pub(crate) queue_refusals: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

impl ServerMetrics {
    /// Counts a request with the time until its response started.
    pub(crate) fn request(&self, route: &str, status: u16, took: Duration) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let (n, sum) = requests.entry((route.to_string(), status)).or_default();
        *n += 1;
        *sum += took;
    }

    /// The counters that have one value: name, description and value.
    fn counters(&self) -> [(&'static str, &'static str, &AtomicU64); 9] {
        [
            (
                "tercet_prompt_tokens_total",
                "Prompt tokens of finished requests.",
                &self.prompt_tokens,
            ),
            (
                "tercet_generated_tokens_total",
                "Generated tokens of finished requests.",
                &self.generated_tokens,
            ),
            (
                "tercet_cached_tokens_total",
                "Prompt tokens that were taken from a cache instead of being read.",
                &self.cached_tokens,
            ),
            (
                "tercet_reread_tokens_total",
                "Tokens that were read although an earlier sequence had read them.",
                &self.reread_tokens,
            ),
            (
                "tercet_cancelled_total",
                "Requests cancelled by the client.",
                &self.cancelled,
            ),
            (
                "tercet_deadline_exceeded_total",
                "Requests that exceeded their deadline.",
                &self.deadline_exceeded,
            ),
            (
                "tercet_started_total",
                "Requests that got a slot; each completion counts.",
                &self.started,
            ),
            (
                "tercet_queue_timeouts_total",
                "Requests that waited too long for a slot.",
                &self.queue_timeouts,
            ),
            (
                "tercet_queue_refusals_total",
                "Requests that found no place in a queue, or lost it to others.",
                &self.queue_refusals,
            ),
        ]
    }

    /// Formats the metrics page.
    pub(crate) fn page(
        &self,
        models: &ModelMetrics<'_>,
        prefixes: Option<PrefixStoreStats>,
    ) -> String {
        let mut page = String::new();
        let requests = self
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let of =
            |(route, status): &(String, u16)| format!("{{route=\"{route}\",status=\"{status}\"}}");
        let rows = requests
            .iter()
            .map(|(key, (n, _))| (of(key), n.to_string()));
        metric(
            &mut page,
            "tercet_requests_total",
            "counter",
            "Requests by route and status.",
            rows,
        );
        let rows = requests
            .iter()
            .map(|(key, (_, sum))| (of(key), sum.as_secs_f64().to_string()));
        metric(
            &mut page,
            "tercet_time_to_first_byte_seconds_total",
            "counter",
            "Total seconds from the start of a request to the first byte of its response.",
            rows,
        );
        for (name, help, counter) in self.counters() {
            let value = counter.load(Ordering::Relaxed).to_string();
            metric(
                &mut page,
                name,
                "counter",
                help,
                [(String::new(), value)].into_iter(),
            );
        }
        let seconds = self.queue_micros.load(Ordering::Relaxed) as f64 / 1e6;
        metric(
            &mut page,
            "tercet_queue_seconds_total",
            "counter",
            "Seconds that started requests waited for a slot.",
            [(String::new(), seconds.to_string())].into_iter(),
        );
        let gauges: [GaugeSpec; 3] = [
            ("tercet_slots", "Slots of a model.", |l| l.workers),
            ("tercet_slots_busy", "Busy slots of a model.", |l| l.busy),
            (
                "tercet_requests_queued",
                "Requests waiting for a slot.",
                |l| l.waiting,
            ),
        ];
        for (name, help, of) in gauges {
            let rows = models.loaded.iter();
            let rows = rows.map(|(model, load, _)| (model_label(model), of(load).to_string()));
            metric(&mut page, name, "gauge", help, rows);
        }
        let rows = models.loaded.iter();
        let rows = rows.map(|(model, _, bytes)| (model_label(model), bytes.to_string()));
        let help = "Bytes of a loaded model, estimated.";
        metric(&mut page, "tercet_model_bytes", "gauge", help, rows);
        let counters = [
            (
                "tercet_model_loads_total",
                "Models loaded on demand.",
                models.loads,
            ),
            (
                "tercet_model_unloads_total",
                "Models unloaded.",
                models.unloads,
            ),
        ];
        for (name, help, value) in counters {
            let row = [(String::new(), value.to_string())];
            metric(&mut page, name, "counter", help, row.into_iter());
        }
        prefix_metrics(&mut page, &prefixes.unwrap_or_default());
        page
    }
}

/// Appends the metrics of the prefix store.
fn prefix_metrics(page: &mut String, stats: &PrefixStoreStats) {
    let rows = [
        (
            "tercet_cache_restored_tokens_total",
            "counter",
            "Cached prompt tokens whose slot had been taken, from memory or disk.",
            stats.restored_tokens,
        ),
        (
            "tercet_cache_entries",
            "gauge",
            "Stored prefixes.",
            stats.entries as u64,
        ),
        (
            "tercet_cache_memory_bytes",
            "gauge",
            "Bytes of the stored prefixes in memory.",
            stats.memory_bytes,
        ),
        (
            "tercet_cache_disk_bytes",
            "gauge",
            "Bytes of the files of stored prefixes.",
            stats.disk_bytes,
        ),
    ];
    for (name, kind, help, value) in rows {
        let row = [(String::new(), value.to_string())];
        metric(page, name, kind, help, row.into_iter());
    }
}

fn model_label(model: &str) -> String {
    format!("{{model=\"{}\"}}", label(model))
}

fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn metric(
    page: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    rows: impl Iterator<Item = (String, String)>,
) {
    // Writing to a string does not fail.
    let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in rows {
        let _ = writeln!(page, "{name}{labels} {value}");
    }
}
