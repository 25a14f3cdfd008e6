//! `cargo xtask bench cpu`: runs the criterion benches, then collects, compares and prints the
//! results.
//!
//! The command runs Tercet's benches first and the peers second. One set of rows gives a table
//! ([`table`]) and a JSON file. [`criterion`] reads criterion's files, and [`peers`] runs ONNX
//! Runtime.
//!
//! # Convention for benches
//!
//! - A benchmark is named `group/name`. The throughput of a benchmark is `Elements` (FLOPs, or
//!   tokens in the groups of [`TOKEN_GROUPS`]) or `Bytes`.
//! - A peer measured inside criterion has the same name with an additional part `peer-NAME`:
//!   `gemm/1024x1024x1024/peer-faer` is the peer of `gemm/1024x1024x1024`.
//! - ONNX Runtime's measurements have the names of Tercet's benchmarks.

mod criterion;
mod ops;
mod peers;
mod table;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use crate::error::{self, XtaskError};
use crate::{CpuBenchArgs, cache, env, fetch, process};
use criterion::{CriterionMeasurement, WorkAmount};
pub(crate) use ops::{OpsBenchArgs, ops};
use peers::PeerTime;

/// The bench targets: package and target name.
const TARGETS: [(&str, &str); 2] = [("tercet-bench-kernels", "kernels"), ("tercet-tests", "cpu")];

/// The groups whose elements are tokens; the elements of other groups are FLOPs.
const TOKEN_GROUPS: [&str; 4] = ["decode", "generate", "minilm", "prefill"];

const PEER_PREFIX: &str = "peer-";

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct BenchRow {
    work: String,
    time_ns: f64,
    rate: Option<WorkRate>,
    peers: Vec<PeerComparison>,
}

/// Work per second, in `unit`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct WorkRate {
    value: f64,
    unit: &'static str,
}

/// The time of another library for the same work.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct PeerComparison {
    peer: String,
    time_ns: f64,
    /// The peer's time divided by Tercet's: above 1 Tercet is faster.
    ratio: f64,
}

/// The contents of the `--json` file.
#[derive(Serialize)]
struct BenchTableReport<'a> {
    processor: &'a str,
    threads: u16,
    rows: &'a [BenchRow],
}

/// Builds and runs the bench of a GPU executor, then the peers if `with_peers` is set.
///
/// # Errors
/// [`XtaskError`] if a program cannot be built or run.
pub(crate) fn gpu(args: &[OsString], with_peers: bool) -> Result<(), XtaskError> {
    let mut cargo = process::cargo();
    cargo.args(["bench", "--package", "tercet-tests", "--bench", "gpu", "--"]);
    process::run(cargo.args(args))?;
    match with_peers {
        true => peers::on_gpu(),
        false => Ok(()),
    }
}

/// Runs the CPU benches, compares and prints the results.
pub(crate) fn cpu(options: &CpuBenchArgs) -> Result<(), XtaskError> {
    let cache = cache::dir()?;
    let minilm = fetch::minilm(&cache)?;
    let results = target_dir()?.join("criterion");
    let since = if options.no_run {
        SystemTime::UNIX_EPOCH
    } else {
        let start = SystemTime::now();
        run_benches(options, &minilm, &results)?;
        start
    };
    let measured = criterion::read(&results, since)?;
    if measured.is_empty() {
        return Err(XtaskError::NoResults { dir: results });
    }
    let peer_times = if options.peers {
        peers::onnx_runtime(&cache, &minilm, options.threads)?
    } else {
        Vec::new()
    };
    let rows = rows(&measured, &peer_times);
    let processor = processor();
    println!("{processor}, {} threads\n", options.threads);
    print!("{}", table::render(&rows));
    match &options.json {
        Some(path) => {
            let report = BenchTableReport {
                processor: &processor,
                threads: options.threads,
                rows: &rows,
            };
            write_json(path, &report)
        }
        None => Ok(()),
    }
}

fn run_benches(options: &CpuBenchArgs, minilm: &Path, results: &Path) -> Result<(), XtaskError> {
    for (package, target) in TARGETS {
        let mut cargo = process::cargo();
        cargo
            .args(["bench", "--package", package, "--bench", target, "--"])
            .args(&options.args)
            .env("CRITERION_HOME", results)
            .env(env::THREADS, options.threads.to_string())
            .env(env::MINILM_DIR, minilm)
            .env(env::REQUIRE, env::REQUIRE_DEFAULT);
        process::run(&mut cargo)?;
    }
    Ok(())
}

/// The target folder of cargo, from `cargo metadata`.
pub(crate) fn target_dir() -> Result<PathBuf, XtaskError> {
    let metadata = process::output(process::cargo().args([
        "metadata",
        "--format-version=1",
        "--no-deps",
        "--offline",
    ]))?;
    let value: serde_json::Value =
        serde_json::from_slice(&metadata).map_err(|source| XtaskError::Json {
            path: "cargo metadata".into(),
            source,
        })?;
    let dir = value.get("target_directory").and_then(|dir| dir.as_str());
    dir.map(PathBuf::from).ok_or(XtaskError::NoTargetDir)
}

/// Tercet's benchmarks in name order, each with its peers.
fn rows(measured: &[CriterionMeasurement], peer_times: &[PeerTime]) -> Vec<BenchRow> {
    let mut peers_of: BTreeMap<String, Vec<(&str, f64)>> = BTreeMap::new();
    let mut ours = Vec::new();
    for measurement in measured {
        match split_peer(&measurement.id) {
            Some((id, peer)) => peers_of
                .entry(id)
                .or_default()
                .push((peer, measurement.time_ns)),
            None => ours.push(measurement),
        }
    }
    let row = |measurement: &CriterionMeasurement| {
        let inside = peers_of.get(&measurement.id).into_iter().flatten().copied();
        let outside = peer_times
            .iter()
            .filter(|peer| peer.work == measurement.id)
            .map(|peer| (peer.peer.as_str(), peer.median_ns));
        let peers = inside.chain(outside).map(|(peer, time_ns)| PeerComparison {
            peer: peer.to_owned(),
            time_ns,
            ratio: time_ns / measurement.time_ns,
        });
        BenchRow {
            work: measurement.id.clone(),
            time_ns: measurement.time_ns,
            rate: measurement
                .work
                .map(|work| rate(&measurement.id, work, measurement.time_ns)),
            peers: peers.collect(),
        }
    };
    ours.into_iter().map(row).collect()
}

/// Splits `gemm/1024/peer-faer` into (`gemm/1024`, `faer`).
fn split_peer(id: &str) -> Option<(String, &str)> {
    let peer = id
        .split('/')
        .find_map(|part| part.strip_prefix(PEER_PREFIX))?;
    let rest: Vec<_> = id
        .split('/')
        .filter(|part| !part.starts_with(PEER_PREFIX))
        .collect();
    Some((rest.join("/"), peer))
}

/// Units per nanosecond are giga-units per second.
#[allow(
    clippy::cast_precision_loss,
    reason = "a rate is printed with four digits"
)]
fn rate(id: &str, work: WorkAmount, time_ns: f64) -> WorkRate {
    let group = id.split('/').next().unwrap_or(id);
    match work {
        WorkAmount::Bytes(bytes) => WorkRate {
            value: bytes as f64 / time_ns,
            unit: "GB/s",
        },
        WorkAmount::Elements(tokens) if TOKEN_GROUPS.contains(&group) => WorkRate {
            value: tokens as f64 / time_ns * 1e9,
            unit: "tok/s",
        },
        WorkAmount::Elements(flops) => WorkRate {
            value: flops as f64 / time_ns,
            unit: "GFLOP/s",
        },
    }
}

/// The processor's name, if the operating system reports it.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(
        || std::env::consts::ARCH.to_owned(),
        |(_, name)| name.trim().to_owned(),
    )
}

fn write_json(path: &Path, report: &BenchTableReport<'_>) -> Result<(), XtaskError> {
    let mut text = serde_json::to_string_pretty(report).map_err(|source| XtaskError::Json {
        path: path.to_owned(),
        source,
    })?;
    text.push('\n');
    fs::write(path, text).map_err(error::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(id: &str, time_ns: f64, work: Option<WorkAmount>) -> CriterionMeasurement {
        CriterionMeasurement {
            id: id.to_owned(),
            time_ns,
            work,
        }
    }

    #[test]
    fn rates_follow_the_group_and_the_kind_of_work() {
        let check = |id, work, value, unit| {
            assert_eq!(rate(id, work, 1e6), WorkRate { value, unit }, "{id}");
        };
        check(
            "gemm/1024x1024x1024",
            WorkAmount::Elements(2_000_000),
            2.0,
            "GFLOP/s",
        );
        check("map/chain8", WorkAmount::Bytes(32_000_000), 32.0, "GB/s");
        check(
            "minilm/1x128",
            WorkAmount::Elements(128),
            128_000.0,
            "tok/s",
        );
        check("decode/demo", WorkAmount::Elements(1), 1000.0, "tok/s");
    }

    #[test]
    fn peers_are_found_by_name() {
        let measured = [
            measurement("gemm/1024", 2e6, Some(WorkAmount::Elements(4_000_000))),
            measurement("gemm/1024/peer-faer", 1e6, None),
            measurement("minilm/8x128", 50e6, None),
            measurement("minilm/1x128", 4e6, None),
        ];
        let ort = |work: &str, median_ns| PeerTime {
            peer: "onnxruntime 1".into(),
            work: work.into(),
            median_ns,
        };
        let peers = [ort("minilm/1x128", 8e6), ort("minilm/8x128", 60e6)];
        let rows = rows(&measured, &peers);
        let shown: Vec<_> = rows
            .iter()
            .map(|row| {
                let [peer] = row.peers.as_slice() else {
                    panic!("one peer in {row:?}")
                };
                (row.work.as_str(), peer.peer.as_str(), peer.ratio)
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("gemm/1024", "faer", 0.5),
                ("minilm/8x128", "onnxruntime 1", 1.2),
                ("minilm/1x128", "onnxruntime 1", 2.0),
            ]
        );
        assert_eq!(
            rows[0].rate,
            Some(WorkRate {
                value: 2.0,
                unit: "GFLOP/s"
            })
        );
        assert_eq!(rows[1].rate, None);
    }

    #[test]
    fn the_bench_targets_of_the_table_are_in_the_workspace() {
        let metadata = process::output(process::cargo().args([
            "metadata",
            "--format-version=1",
            "--no-deps",
            "--offline",
        ]))
        .unwrap();
        let text = String::from_utf8(metadata).unwrap();
        for (package, _) in TARGETS {
            assert!(
                text.contains(&format!("\"name\":\"{package}\"")),
                "{package}"
            );
        }
        assert!(target_dir().unwrap().is_absolute());
    }
}
