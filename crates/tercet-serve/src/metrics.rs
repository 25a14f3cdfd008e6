//! Counters in Prometheus' text form: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::pool::Load;

/// A gauge's name, what it shows, and how it is read.
type Gauge = (&'static str, &'static str, fn(&Load) -> usize);

/// What was counted since the server started.
#[derive(Default)]
pub(crate) struct Metrics {
    /// By route and status.
    requests: Mutex<BTreeMap<(String, u16), (u64, Duration)>>,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) written_tokens: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) late: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

impl Metrics {
    /// A request whose response began after this time.
    pub(crate) fn request(&self, route: &str, status: u16, took: Duration) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let (n, sum) = requests.entry((route.to_string(), status)).or_default();
        *n += 1;
        *sum += took;
    }

    /// The page; `loads` are models by name with what their slots do.
    pub(crate) fn page(&self, loads: &[(&str, Load)]) -> String {
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
            "tercet_response_start_seconds_total",
            "counter",
            "Seconds until responses began.",
            rows,
        );
        let counters = [
            (
                "tercet_prompt_tokens_total",
                "Tokens of prompts.",
                &self.prompt_tokens,
            ),
            (
                "tercet_written_tokens_total",
                "Tokens written.",
                &self.written_tokens,
            ),
            (
                "tercet_cancelled_total",
                "Texts whose client left.",
                &self.cancelled,
            ),
            (
                "tercet_deadline_exceeded_total",
                "Requests beyond their deadline.",
                &self.late,
            ),
        ];
        for (name, help, counter) in counters {
            let value = counter.load(Ordering::Relaxed).to_string();
            metric(
                &mut page,
                name,
                "counter",
                help,
                [(String::new(), value)].into_iter(),
            );
        }
        let gauges: [Gauge; 3] = [
            ("tercet_slots", "Slots of a model.", |l| l.workers),
            ("tercet_slots_busy", "Slots that work now.", |l| l.busy),
            ("tercet_queue", "Requests that wait for a slot.", |l| {
                l.waiting
            }),
        ];
        for (name, help, of) in gauges {
            let rows = loads.iter().map(|(model, load)| {
                (
                    format!("{{model=\"{}\"}}", label(model)),
                    of(load).to_string(),
                )
            });
            metric(&mut page, name, "gauge", help, rows);
        }
        page
    }
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
