//! Measures the run times of a model on a device, for the scripts of `xtask/peers`: `model_times
//! MODEL DEVICE INPUT.pb...`.
//!
//! Each input file contains one `TensorProto`. The first output line has the seconds of the
//! compilation and of the first run. The program then executes commands from standard input:
//!
//! - `run N`: runs the model N times and prints the microseconds of each run. A run starts from
//!   host inputs, which the device may cache, and ends with results on the host.
//! - `stay N`: the same, but results stay on the device.
//! - `write FOLDER`: writes the outputs as raw little-endian elements to `FOLDER/N.bin`, and prints
//!   the dtype and sizes of each.
//! - `explain`: prints the kernels and the number of their dispatches.
//! - `steps N`: compiles the model again with timestamps and runs it N times. Prints a line per
//!   step, ordered by start time: the median start and duration in microseconds, the operator and
//!   the kernel. The last line is `end`.

use std::error::Error;
use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::time::Instant;

use tercet::{CompileOptions, Device, DeviceOptions, Executable, OutputSelection, Tensor};
use tercet_onnx::{ImportOptions, ImportedModel, import, read_tensor};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, name, files @ ..] = args.as_slice() else {
        return Err("usage: model_times MODEL DEVICE INPUT.pb...".into());
    };
    let inputs = files.iter().map(|f| Ok(read_tensor(std::fs::read(f)?)?));
    let inputs: Vec<Tensor> = inputs.collect::<Result<_, Box<dyn Error>>>()?;
    let device = Device::by_name(name)?;
    let started = Instant::now();
    let imported = import(Path::new(model), &ImportOptions::new())?;
    let read = started.elapsed().as_secs_f64();
    let names: Vec<String> = imported.inputs.iter().map(|p| p.name.clone()).collect();
    let given: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&inputs).collect();
    if given.len() != names.len() {
        return Err(format!("the model has {} inputs", names.len()).into());
    }
    let mut exe = imported.compile(&device)?;
    let compiled = started.elapsed().as_secs_f64();
    exe.run(&given)?;
    let first = started.elapsed().as_secs_f64() - compiled;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{compiled} {first} {read}")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            (command @ ("run" | "stay"), n) => {
                let wanted = match command {
                    "run" => OutputSelection::All,
                    _ => OutputSelection::Only(&[]),
                };
                let times = times(&mut *exe, &given, n.parse()?, wanted)?;
                writeln!(out, "{}", times.join(" "))?;
            }
            ("write", folder) => {
                let mut said = Vec::new();
                for (i, tensor) in exe.run(&given)?.iter().enumerate() {
                    std::fs::write(Path::new(folder).join(format!("{i}.bin")), tensor.bytes())?;
                    let sizes: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
                    said.push(format!("{}:{}", tensor.dtype(), sizes.join("x")));
                }
                writeln!(out, "{}", said.join(" "))?;
            }
            ("explain", _) => {
                let options = CompileOptions {
                    bounds: imported.bounds.clone(),
                    ..CompileOptions::default()
                };
                writeln!(out, "{}", device.explain(&imported.graph, &options)?)?;
            }
            ("steps", n) => writeln!(out, "{}", steps(name, &imported, &given, n.parse()?)?)?,
            _ => return Err(format!("unknown command `{line}`").into()),
        }
        out.flush()?;
    }
    Ok(())
}

/// The times of runs in microseconds.
fn times(
    exe: &mut dyn Executable,
    given: &[(&str, &Tensor)],
    runs: usize,
    wanted: OutputSelection<'_>,
) -> Result<Vec<String>, Box<dyn Error>> {
    let mut outputs = Vec::new();
    let mut times = Vec::new();
    for _ in 0..runs {
        let started = Instant::now();
        match wanted {
            // Reuses the memory of the outputs.
            OutputSelection::All => exe.run_into(given, &mut outputs)?,
            OutputSelection::Only(_) => {
                exe.submit(given, wanted)?;
                exe.wait(&mut outputs)?;
            }
        }
        times.push(format!("{:.1}", started.elapsed().as_secs_f64() * 1e6));
    }
    Ok(times)
}

/// A line per step, with medians over the runs.
fn steps(
    name: &str,
    imported: &ImportedModel,
    given: &[(&str, &Tensor)],
    runs: usize,
) -> Result<String, Box<dyn Error>> {
    let options = DeviceOptions {
        timings: true,
        ..DeviceOptions::default()
    };
    let mut exe = imported.compile(&Device::open(name, &options)?)?;
    let mut outputs = Vec::new();
    let mut all = Vec::new();
    for _ in 0..=runs.max(1) {
        exe.run_into(given, &mut outputs)?;
        all.push(exe.timings());
    }
    // The first run is a warm-up.
    let last = all.split_off(1);
    let median = |of: &dyn Fn(&[tercet::StepTime]) -> Option<u64>| -> u64 {
        let mut values: Vec<u64> = last.iter().filter_map(|run| of(run)).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    let mut lines = Vec::new();
    for (i, step) in last[0].iter().enumerate() {
        let begin = median(&|run| run.get(i)?.start_ns.checked_sub(run.first()?.start_ns));
        let took = median(&|run| Some(run.get(i)?.ns));
        let (begin, took) = (begin as f64 / 1e3, took as f64 / 1e3);
        let (op, kernel) = (&step.op, &step.kernel);
        lines.push((begin, format!("{begin:.2}\t{took:.2}\t{op}\t{kernel}\n")));
    }
    lines.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(lines.into_iter().map(|(_, line)| line).collect::<String>() + "end")
}
