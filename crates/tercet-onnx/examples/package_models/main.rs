//! Runs a model of a Python package at several sizes and compares the results with those of ONNX
//! Runtime: `package_models MODEL DATA.pb`.
//!
//! The data is a `GraphProto` whose initializers are `RUN/in/NAME` and `RUN/out/NAME`. The last
//! line of the output has tab-separated columns: the outcome, the largest difference relative to
//! the largest element of its result, the milliseconds of a run and of loading, and the megabytes
//! at all sizes. `cargo xtask onnx packages` turns the lines into a table.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

use tercet::{Device, Tensor, one_line};
use tercet_onnx::{ImportOptions, Session};

/// Named tensors.
type NamedTensors = Vec<(String, Tensor)>;

/// The inputs and expected results of a run.
#[derive(Default)]
struct PackageRun {
    inputs: NamedTensors,
    outputs: NamedTensors,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, data] = args.as_slice() else {
        return Err("usage: package_models MODEL DATA.pb".into());
    };
    match compare(Path::new(model), Path::new(data)) {
        Ok(line) => println!("{line}"),
        Err(e) => {
            let reason = one_line(&*e).replace(['\n', '\t'], " ");
            println!(
                "{}",
                reason.split_whitespace().collect::<Vec<_>>().join(" ")
            );
        }
    }
    Ok(())
}

fn compare(model: &Path, data: &Path) -> Result<String, Box<dyn Error>> {
    let before = resident("VmRSS");
    let started = Instant::now();
    let mut session = Session::open(model, &Device::cpu(), &ImportOptions::new())?;
    let tensors = session.strings().read_tensors(std::fs::read(data)?)?;
    let mut runs: BTreeMap<usize, PackageRun> = BTreeMap::new();
    for (name, tensor) in tensors {
        let mut parts = name.splitn(3, '/');
        let (Some(run), Some(side), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(format!("`{name}` is not RUN/in/NAME or RUN/out/NAME").into());
        };
        let run = runs.entry(run.parse()?).or_default();
        let list = if side == "in" {
            &mut run.inputs
        } else {
            &mut run.outputs
        };
        list.push((name.to_string(), tensor));
    }
    let first = runs.values().next().ok_or("the data has no runs")?;
    session.run(&named(&first.inputs), None)?;
    let load = started.elapsed().as_secs_f64() * 1e3;
    let mut greatest = 0f64;
    for run in runs.values() {
        let found = session.run(&named(&run.inputs), None)?;
        for (name, want) in &run.outputs {
            let got = found.iter().find(|(n, _)| n == name);
            let (_, got) = got.ok_or_else(|| format!("output `{name}` is missing"))?;
            greatest = greatest.max(difference(name, got, want)?);
        }
    }
    let memory = resident("VmHWM") - before;
    let mut times = Vec::new();
    while times.len() < 20 && times.iter().sum::<f64>() < 2.0 {
        let started = Instant::now();
        session.run(&named(&first.inputs), None)?;
        times.push(started.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let time = times[times.len() / 2] * 1e3;
    Ok(format!(
        "opens\t{greatest:.1e}\t{time:.2}\t{load:.0}\t{memory:.0}"
    ))
}

fn named(list: &NamedTensors) -> Vec<(&str, &Tensor)> {
    list.iter().map(|(n, t)| (n.as_str(), t)).collect()
}

/// The largest difference relative to the largest element. Differences up to 1e-7 count as none, as
/// in ONNX's own tests.
fn difference(name: &str, got: &Tensor, want: &Tensor) -> Result<f64, String> {
    if got.shape() != want.shape() {
        let (got, want) = (got.shape(), want.shape());
        return Err(format!(
            "output `{name}` has shape {got:?}, expected {want:?}"
        ));
    }
    let (got, want) = (got.to_f64s(), want.to_f64s());
    let finite = want.iter().filter(|x| x.is_finite());
    let scale = finite.fold(0f64, |most, x| most.max(x.abs())).max(1e-30);
    let apart = |(a, b): (&f64, &f64)| match a == b || (a.is_nan() && b.is_nan()) {
        true => 0.0,
        false if (a - b).abs() <= 1e-7 => 0.0,
        false => (a - b).abs() / scale,
    };
    let all = got.iter().zip(&want).map(apart);
    Ok(all.fold(0.0, |most: f64, d| {
        if d.is_nan() {
            f64::INFINITY
        } else {
            most.max(d)
        }
    }))
}

/// A memory value of this process in megabytes; 0 where the system has none.
fn resident(key: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kilobytes.unwrap_or(0.0) / 1024.0
}
