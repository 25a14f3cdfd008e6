//! `tercet bench --serve`: rate and latency of a language model through HTTP on this machine.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use tercet_serve::{HttpServer, ModelRegistry, ServeOptions};

use super::BenchArgs;
use crate::error::{CliError, CommandOutcome};
use crate::{output, progress};

/// Maximum time of a request.
const MAX_REQUEST_TIME: Duration = Duration::from_secs(3600);
/// Maximum number of clients. Each client has a thread.
pub(super) const MAX_CLIENTS: usize = 1024;

/// Measurements with one number of clients.
#[derive(Serialize)]
struct ServeMeasurement {
    clients: usize,
    requests: usize,
    prompt_tokens: usize,
    /// Generated tokens of each request.
    tokens: usize,
    seconds: f64,
    /// Generated tokens of all requests, divided by the time from the first request to the last token.
    tokens_per_second: f64,
    /// Time from a request to its first token.
    first_token_seconds: Latency,
    /// Time between the events of an answer.
    gap_seconds: Latency,
}

#[derive(Clone, Copy, Serialize)]
struct Latency {
    median: f64,
    /// The time that one in a hundred exceeds.
    p99: f64,
    most: f64,
}

impl Latency {
    fn new(mut seconds: Vec<f64>) -> Latency {
        seconds.sort_by(f64::total_cmp);
        let last = seconds.len().saturating_sub(1);
        let at = |part: f64| {
            let at = (last as f64 * part).round() as usize;
            seconds.get(at).copied().unwrap_or(0.0)
        };
        Latency {
            median: at(0.5),
            p99: at(0.99),
            most: at(1.0),
        }
    }
}

#[derive(Serialize)]
struct ServeReport {
    model: String,
    device: String,
    dtype: String,
    slots: usize,
    load_seconds: f64,
    tests: Vec<ServeMeasurement>,
}

/// The times of a request, in seconds.
struct RequestTimes {
    first_token: f64,
    gaps: Vec<f64>,
}

/// Starts a server of the model on a free port and measures requests of each number of clients.
pub(super) fn run(args: &BenchArgs) -> Result<CommandOutcome, CliError> {
    let started = Instant::now();
    let slots = args.parallel;
    let served = args.loading.served()?;
    let options = ServeOptions {
        slots,
        queue: MAX_CLIENTS,
        deadline: MAX_REQUEST_TIME,
        rope: args.loading.rope()?,
        ..ServeOptions::default()
    };
    let spinner = progress::spinner("loading");
    let (device, dtype) = (
        served.config.device.name().to_string(),
        served.label.clone(),
    );
    let mut models = ModelRegistry::new();
    models.add_model("bench", served.files, served.config, &options)?;
    let server = HttpServer::bind("127.0.0.1", 0, models, options)?;
    spinner.finish_and_clear();
    let load_seconds = started.elapsed().as_secs_f64();
    let load = Load {
        address: server.address(),
        model: served.requested,
        vocab: served.vocab,
        prompt: args.prompt,
        tokens: args.tokens,
        next: AtomicUsize::new(0),
    };
    // The server ends with the process.
    std::thread::spawn(move || server.run(std::future::pending::<()>()));
    let spinner = progress::spinner("measuring");
    load.request()?;
    let counts = args.serve.iter();
    let tests = counts.map(|clients| load.measure(*clients, args.repetitions));
    let tests = tests.collect::<Result<Vec<_>, CliError>>()?;
    spinner.finish_and_clear();
    let report = ServeReport {
        model: args.loading.name(),
        device,
        dtype,
        slots,
        load_seconds,
        tests,
    };
    match args.json {
        true => output::json(&report)?,
        false => output::print_for_humans(|out| table(out, &report))?,
    }
    Ok(CommandOutcome::Done)
}

/// Clients of the server.
struct Load {
    address: SocketAddr,
    /// Name of the model in requests.
    model: String,
    vocab: usize,
    prompt: usize,
    tokens: usize,
    /// Number of the next prompt; no two requests have equal prompts.
    next: AtomicUsize,
}

impl Load {
    /// Each client sends `requests` requests, one after the other.
    fn measure(&self, clients: usize, requests: usize) -> Result<ServeMeasurement, CliError> {
        let started = Instant::now();
        let times = std::thread::scope(|scope| {
            let client = || {
                let all = (0..requests).map(|_| self.request());
                all.collect::<Result<Vec<RequestTimes>, CliError>>()
            };
            let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
            let mut times = Vec::new();
            for thread in threads {
                // Only a bug makes a client panic, and its panic is this one.
                let own = thread
                    .join()
                    .unwrap_or_else(|e| std::panic::resume_unwind(e));
                times.extend(own?);
            }
            Ok::<_, CliError>(times)
        })?;
        let seconds = started.elapsed().as_secs_f64();
        let count = clients * requests;
        let gaps = times
            .iter()
            .flat_map(|request| request.gaps.iter().copied());
        Ok(ServeMeasurement {
            clients,
            requests: count,
            prompt_tokens: self.prompt,
            tokens: self.tokens,
            seconds,
            tokens_per_second: (count * self.tokens) as f64 / seconds.max(1e-9),
            gap_seconds: Latency::new(gaps.collect()),
            first_token_seconds: Latency::new(times.iter().map(|own| own.first_token).collect()),
        })
    }

    /// Sends a request and reads its events.
    fn request(&self) -> Result<RequestTimes, CliError> {
        let of = self.next.fetch_add(1, Ordering::Relaxed);
        let prompt = (0..self.prompt).map(|i| {
            let seed = i.wrapping_add(of.wrapping_mul(7919));
            seed.wrapping_mul(2_654_435_761) % self.vocab
        });
        let body = json!({
            "model": self.model,
            "prompt": prompt.collect::<Vec<usize>>(),
            "max_tokens": self.tokens,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        let agent: ureq::Agent = config.timeout_global(Some(MAX_REQUEST_TIME)).build().into();
        let started = Instant::now();
        let sent = agent
            .post(format!("http://{}/v1/completions", self.address))
            .header("content-type", "application/json")
            .send(body.to_string());
        let mut response = sent.map_err(|e| failed(&e.to_string()))?;
        if response.status() != 200 {
            let text = response.body_mut().read_to_string();
            return Err(failed(&text.unwrap_or_else(|e| e.to_string())));
        }
        let mut times = RequestTimes {
            first_token: 0.0,
            gaps: Vec::new(),
        };
        let (mut last, mut written) = (None, 0);
        let events = BufReader::new(response.body_mut().as_reader());
        for line in events.lines() {
            let line = line.map_err(|e| failed(&e.to_string()))?;
            let Some(event) = line.strip_prefix("data: ").filter(|e| *e != "[DONE]") else {
                continue;
            };
            let event: Value = serde_json::from_str(event).map_err(|e| failed(&e.to_string()))?;
            if let Some(message) = event["error"]["message"].as_str() {
                return Err(failed(message));
            }
            if let Some(count) = event["usage"]["completion_tokens"].as_u64() {
                written = count as usize;
                continue;
            }
            let now = Instant::now();
            match last.replace(now) {
                None => times.first_token = (now - started).as_secs_f64(),
                Some(before) => times.gaps.push((now - before).as_secs_f64()),
            }
        }
        match written == self.tokens {
            true => Ok(times),
            false => Err(failed(&format!(
                "an answer has {written} tokens, not {}; the model's context is too short",
                self.tokens
            ))),
        }
    }
}

fn failed(reason: &str) -> CliError {
    CliError::Usage(format!("cannot measure the server: {reason}"))
}

fn table(out: &mut dyn std::io::Write, report: &ServeReport) -> Result<(), std::io::Error> {
    let ServeReport {
        model,
        device,
        dtype,
        slots,
        load_seconds: _,
        tests,
    } = report;
    writeln!(
        out,
        "| model | device | dtype | slots | clients | tokens/s | first token, ms | 99 of 100, ms | gap, ms | 99 of 100, ms |"
    )?;
    writeln!(out, "|---|---|---|---:|---:|---:|---:|---:|---:|---:|")?;
    for test in tests {
        let (clients, rate) = (test.clients, test.tokens_per_second);
        let [first, late, gap, long] = [
            test.first_token_seconds.median,
            test.first_token_seconds.p99,
            test.gap_seconds.median,
            test.gap_seconds.p99,
        ]
        .map(|seconds| seconds * 1e3);
        writeln!(
            out,
            "| {model} | {device} | {dtype} | {slots} | {clients} | {rate:.1} | {first:.1} | {late:.1} | {gap:.1} | {long:.1} |"
        )?;
    }
    Ok(())
}
