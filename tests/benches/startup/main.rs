//! Measures the time from process start to the first token of a language model, without and with
//! the disk caches of earlier processes.
//!
//! ```text
//! startup [--model FILE] [--device vulkan,wgpu] [--dtype f32|f16] [--runs N] [--quick] [--json FILE]
//! startup --write FILE [--quick]
//! ```
//!
//! Without a file, the bench writes a model with the shape of a 1.1B llama to the temporary folder:
//! Q4_K and Q6_K blocks and a vocabulary of 32,000 tokens. Each measurement is a separate process,
//! which the bench starts and waits for. Driver caches are in a separate folder that is initially
//! empty. The executable is self-contained.

mod child;
mod file;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The command-line arguments.
struct Args {
    model: Option<PathBuf>,
    write: Option<PathBuf>,
    json: Option<PathBuf>,
    /// The cache folder, in a process that is being measured.
    child: Option<PathBuf>,
    devices: Vec<String>,
    dtype: String,
    runs: usize,
    quick: bool,
}

fn args() -> Result<Args> {
    let mut args = Args {
        model: None,
        write: None,
        json: None,
        child: None,
        devices: vec!["vulkan".to_string(), "wgpu".to_string()],
        dtype: "f32".to_string(),
        runs: 5,
        quick: false,
    };
    let mut given = std::env::args().skip(1);
    while let Some(arg) = given.next() {
        let mut value = || given.next().ok_or(format!("{arg} takes a value"));
        match arg.as_str() {
            "--model" => args.model = Some(value()?.into()),
            "--write" => args.write = Some(value()?.into()),
            "--json" => args.json = Some(value()?.into()),
            "--child" => args.child = Some(value()?.into()),
            "--device" => args.devices = value()?.split(',').map(str::to_string).collect(),
            "--dtype" => args.dtype = value()?,
            "--runs" => args.runs = value()?.parse()?,
            "--quick" => args.quick = true,
            // Cargo passes `--bench` to every bench target.
            "--bench" => {}
            _ => return Err(format!("unknown argument `{arg}`").into()),
        }
    }
    Ok(args)
}

fn main() -> Result<()> {
    let start = Instant::now();
    let args = args()?;
    if let (Some(caches), Some(model), [device]) = (&args.child, &args.model, &*args.devices) {
        return child::run(start, model, device, &args.dtype, caches);
    }
    if let Some(path) = &args.write {
        return file::write(path, args.quick);
    }
    let folder = std::env::temp_dir().join(format!("tercet-startup-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let measured = measure_all(&args, &folder);
    std::fs::remove_dir_all(&folder).ok();
    let report = measured?;
    if let Some(path) = &args.json {
        std::fs::write(path, report.to_string())?;
    }
    Ok(())
}

fn measure_all(args: &Args, folder: &Path) -> Result<Value> {
    let model = match &args.model {
        Some(model) => model.clone(),
        None => {
            let model = folder.join("model.gguf");
            file::write(&model, args.quick)?;
            model
        }
    };
    let mut rows = Vec::new();
    for device in &args.devices {
        let caches = folder.join(format!("caches-{}", device.replace(':', "-")));
        let mut warm = Vec::new();
        for run in 0..=args.runs {
            match measure(args, &model, device, &caches) {
                Ok(row) if run == 0 => {
                    print(device, "cold", &row);
                    rows.push(json!({"device": device, "caches": "cold", "row": row}));
                }
                Ok(row) => warm.push(row),
                Err(e) => {
                    println!("{device}: FAILED: {e}");
                    rows.push(json!({"device": device, "failed": e.to_string()}));
                    break;
                }
            }
        }
        let seconds = |row: &Value| row["seconds"].as_f64().unwrap_or(f64::INFINITY);
        warm.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        if let Some(median) = warm.get(warm.len() / 2) {
            print(device, "warm", median);
            rows.push(
                json!({"device": device, "caches": "warm", "row": median, "runs": warm.len()}),
            );
        }
    }
    Ok(json!({ "rows": rows }))
}

/// Measures a separate process: its reported times, and the time from its start to its first token.
fn measure(args: &Args, model: &Path, device: &str, caches: &Path) -> Result<Value> {
    let start = Instant::now();
    let mut child = Command::new(std::env::current_exe()?)
        .arg("--child")
        .arg(caches)
        .arg("--model")
        .arg(model)
        .args(["--device", device, "--dtype", &args.dtype])
        // Drivers have their own caches, shared by all programs.
        .env("__GL_SHADER_DISK_CACHE_PATH", caches)
        .env("MESA_SHADER_CACHE_DIR", caches)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut said)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let status = child.wait()?;
    if !status.success() || said.is_empty() {
        return Err(format!("the process ended with {status}").into());
    }
    let mut row: Value = serde_json::from_str(&said)?;
    row["seconds"] = json!(seconds);
    Ok(row)
}

fn print(device: &str, caches: &str, row: &Value) {
    let ms = |v: &Value| v.as_f64().unwrap_or_default() * 1e3;
    println!(
        "{device}, {caches}: first token after {:.0} ms",
        ms(&row["seconds"])
    );
    for (what, list) in [("phase", &row["phases"]), ("span", &row["spans"])] {
        let list: BTreeMap<String, Value> =
            serde_json::from_value(list.clone()).unwrap_or_default();
        for (name, seconds) in list {
            println!("  {what} {name:<28} {:>9.1} ms", ms(&seconds));
        }
    }
}
