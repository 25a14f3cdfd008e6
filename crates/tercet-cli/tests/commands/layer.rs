//! Drivers that refuse or miscompute a kernel, and portability drivers: a Vulkan layer between the
//! command and the software devices plays them.
//!
//! The newer lavapipe has cooperative matrices. `cargo xtask fetch lavapipe` installs it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tercet_vulkan_layer::{InstalledLayer, PIPELINE, VIOLATION};

use crate::common::{Run, Scratch, f32s, npy, text};

/// A product and what surrounds it.
const MODEL: &str = "graph {
  %x = input{name=\"x\", ty=f32[40, 64]}()
  %w = input{name=\"w\", ty=f32[64, 32]}()
  %s = softmax{axis=1}(%x)
  %y = mat_mul(%s, %w)
  %z = unary{f=tanh}(%y)
  return %z as \"z\", %y as \"y\"
}
";

/// A product on matrices, if the device has some.
const PRODUCT_F16: &str = "graph {
  %x = input{name=\"x\", ty=f16[72, 160]}()
  %w = input{name=\"w\", ty=f16[160, 136]}()
  %y = mat_mul(%x, %w)
  return %y as \"y\"
}
";

/// A software device: that of the system, or the newer one in the cache folder.
struct SoftwareDevice {
    name: &'static str,
    /// The folder of the newer one.
    root: Option<PathBuf>,
}

/// The newer lavapipe, if it was fetched.
fn newer() -> Option<SoftwareDevice> {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let user = || Some(PathBuf::from(of("HOME")?).join(".cache"));
    let caches = || of("XDG_CACHE_HOME").map(PathBuf::from).or_else(user);
    let cache = of("TERCET_CACHE_DIR").map(PathBuf::from);
    let cache = cache.or_else(|| Some(caches()?.join("tercet")))?;
    let root = cache.join("lavapipe");
    let is_there = root.join("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
    if !is_there.is_file() {
        eprintln!("ignored: no newer lavapipe; run `cargo xtask fetch lavapipe`");
        return None;
    }
    Some(SoftwareDevice {
        name: "newer",
        root: Some(root),
    })
}

/// The software devices of this machine.
fn software_devices() -> Vec<SoftwareDevice> {
    let manifest = system_manifest();
    let system = manifest.map(|_| SoftwareDevice {
        name: "system",
        root: None,
    });
    system.into_iter().chain(newer()).collect()
}

/// The manifest of the system's lavapipe.
fn system_manifest() -> Option<PathBuf> {
    let folder = std::fs::read_dir("/usr/share/vulkan/icd.d").ok()?;
    let mut files = folder.filter_map(|entry| Some(entry.ok()?.path()));
    files.find(|path| {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("lvp_icd"))
    })
}

impl SoftwareDevice {
    /// The manifest of the driver.
    fn manifest(&self) -> PathBuf {
        match &self.root {
            Some(root) => root.join("usr/share/vulkan/icd.d/lvp_icd.json"),
            None => system_manifest().unwrap(),
        }
    }

    /// A command with variables, a driver and a cache folder.
    fn command(&self, variables: &[(&str, OsString)], cache: &Path, args: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_tercet");
        let mut command = match &self.root {
            Some(root) => {
                let libraries = root.join("usr/lib/x86_64-linux-gnu");
                let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
                command.arg("--library-path").arg(libraries).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(args).stdin(Stdio::null());
        for name in ["XDG_RUNTIME_DIR", "VK_LAYER_PATH", "VK_ICD_FILENAMES"] {
            command.env_remove(name);
        }
        command.env("VK_DRIVER_FILES", self.manifest());
        command.env("VK_LOADER_LAYERS_DISABLE", "~implicit~");
        command.env("TERCET_CACHE_DIR", cache);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// A device with the layer in a scratch folder.
struct LayeredDevice<'a> {
    device: &'a SoftwareDevice,
    layer: InstalledLayer,
}

/// A finished command and the log of the layer.
struct LayeredRun {
    run: Run,
    log: Vec<String>,
}

impl<'a> LayeredDevice<'a> {
    fn new(device: &'a SoftwareDevice, scratch: &Scratch) -> LayeredDevice<'a> {
        let folder = PathBuf::from(scratch.path(device.name));
        std::fs::create_dir_all(&folder).unwrap();
        let layer = InstalledLayer::new(&folder).unwrap();
        LayeredDevice { device, layer }
    }

    /// Runs a command that must succeed.
    fn run(&self, switches: &str, cache: &str, args: &[&str]) -> LayeredRun {
        let mut variables = self.layer.variables(switches);
        // The test's own list of folders does not matter: the command has none.
        variables[0].0 = "VK_ADD_LAYER_PATH";
        let mut command = self.device.command(&variables, Path::new(cache), args);
        let run = text(command.output().unwrap());
        assert_eq!(run.code, Some(0), "{args:?}: {}", run.err);
        let log = self.layer.take_log().unwrap();
        LayeredRun { run, log }
    }
}

impl LayeredRun {
    /// The shader modules of the pipelines.
    fn modules(&self) -> BTreeSet<&str> {
        let prefix = |line| str::strip_prefix(line, PIPELINE);
        let all = self.log.iter().map(String::as_str).filter_map(prefix);
        all.map(str::trim).collect()
    }

    /// The lines of the error output with this part.
    fn notes(&self, part: &str) -> usize {
        self.run.err.lines().filter(|l| l.contains(part)).count()
    }

    fn violations(&self) -> Vec<&String> {
        let is_one = |line: &&String| line.starts_with(VIOLATION);
        self.log.iter().filter(is_one).collect()
    }

    /// The values of the first output in the JSON of `run`.
    fn values(&self) -> Vec<f64> {
        let outputs: Value = serde_json::from_str(&self.run.out).unwrap();
        let values = outputs[0]["values"].as_array().unwrap().iter();
        values.map(|v| v.as_f64().unwrap()).collect()
    }
}

#[track_caller]
fn assert_close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!(
            (got - want).abs() <= tolerance * want.abs().max(1.0),
            "{got} {want}"
        );
    }
}

/// The variant of the product in the listing of `explain`.
fn chosen(listing: &str) -> String {
    let is_product = |l: &&str| l.contains("mat_mul ") && l.contains("(cost ");
    let line = listing.lines().find(is_product).unwrap();
    line.split_whitespace().nth(3).unwrap().to_string()
}

/// Files of the operands of [`MODEL`], or of [`PRODUCT_F16`].
fn operands(scratch: &Scratch, [m, n, k]: [usize; 3], is_half: bool) -> [String; 2] {
    let file = |name: &str, rows: usize, columns: usize| {
        let values = (0..rows * columns).map(|i| ((i * 7) % 11) as f32 / 11.0 - 0.4);
        let shape = format!("({rows}, {columns})");
        let values: Vec<f32> = values.collect();
        let bytes = match is_half {
            true => {
                let halves = values.iter().map(|x| half_bits(*x).to_le_bytes());
                npy("<f2", &shape, &halves.flatten().collect::<Vec<u8>>())
            }
            false => npy("<f4", &shape, &f32s(&values)),
        };
        format!("{name}={}", scratch.file(&format!("{name}.npy"), bytes))
    };
    [file("x", m, k), file("w", k, n)]
}

/// The bits of a normal number in F16, rounded towards zero.
fn half_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let exponent = (bits >> 23 & 0xff) as i32 - 127 + 15;
    let sign = (bits >> 16 & 0x8000) as u16;
    match exponent {
        1..=30 => sign | (exponent as u16) << 10 | (bits >> 13 & 0x3ff) as u16,
        _ => sign,
    }
}

#[test]
fn a_refused_pipeline_is_replaced_once() {
    let scratch = Scratch::new("layer-refused");
    let graph = scratch.file("model.tercet", MODEL);
    let [x, w] = operands(&scratch, [40, 32, 64], false);
    let run = [
        "run", &graph, "-i", &x, "-i", &w, "--device", "vulkan", "--json",
    ];
    let explain = ["explain", &graph, "--device", "vulkan", "--steps"];
    for device in software_devices() {
        let layered = LayeredDevice::new(&device, &scratch);
        let (plain, other) = (scratch.path("plain"), scratch.path("other"));
        let want = layered.run("", &plain, &run);
        let first = chosen(&layered.run("", &plain, &explain).run.out);
        let without = format!("many={first}");
        let without = [&run[..], &["--without", &without]].concat();
        let others = layered.run("", &other, &without);
        let mut only: BTreeSet<&str> = want.modules();
        only.retain(|module| !others.modules().contains(module));
        let hash = only.first().expect("a kernel of the variant");

        // The driver refuses it: the next variant runs, with one note.
        let (cache, switch) = (scratch.path("refused"), format!("refuse={hash}"));
        let refused = layered.run(&switch, &cache, &run);
        assert_close(&refused.values(), &want.values(), 1e-5);
        let note = format!("the driver refuses many={first}, the next variant of many runs");
        assert_eq!(refused.notes(&note), 1, "{}", refused.run.err);
        assert_eq!(refused.run.err.lines().count(), 1, "{}", refused.run.err);
        assert!(refused.modules().contains(hash));
        // The next start asks the driver no more, and prints nothing.
        let again = layered.run(&switch, &cache, &run);
        assert!(
            !again.modules().contains(hash),
            "{}: asked again",
            device.name
        );
        assert_eq!(again.run.err, "", "{}", device.name);
        assert_eq!(again.values(), refused.values());
        let plan = layered.run(&switch, &cache, &explain).run.out;
        assert_ne!(chosen(&plan), first);
        assert!(
            plan.contains(&format!("the driver refused many={first}")),
            "{plan}"
        );
        for folder in [plain, other, cache] {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

#[test]
fn a_language_model_runs_without_a_refused_pipeline() {
    let scratch = Scratch::new("layer-model");
    let generate = [
        "generate",
        "-p",
        "Ownership is",
        "-n",
        "3",
        "--temp",
        "0",
        "--json",
    ];
    let generate = [&generate[..], &["--device", "vulkan"]].concat();
    let Some(device) = software_devices().into_iter().next() else {
        return;
    };
    let layered = LayeredDevice::new(&device, &scratch);
    let (plain, other) = (scratch.path("plain"), scratch.path("other"));
    let want = layered.run("", &plain, &generate);
    // The last one is the attention of prompts.
    let explain = ["explain", "--device", "vulkan", "--steps"];
    let listing = layered.run("", &plain, &explain).run.out;
    let mut lines = listing
        .lines()
        .filter(|l| l.contains(" attention ") && l.contains("(cost "));
    let variant = lines
        .next_back()
        .unwrap()
        .split_whitespace()
        .nth(3)
        .unwrap();
    let name = format!("attention={variant}");
    let others = layered.run("", &other, &[&generate[..], &["--without", &name]].concat());
    let mut only = want.modules();
    only.retain(|module| !others.modules().contains(module));
    let hash = only.first().expect("a kernel of the variant");
    let tokens = |run: &LayeredRun| {
        let v: Value = serde_json::from_str(&run.run.out).unwrap();
        v["tokens"].clone()
    };
    let (cache, switch) = (scratch.path("refused"), format!("refuse={hash}"));
    let refused = layered.run(&switch, &cache, &generate);
    assert_eq!(tokens(&refused), tokens(&want));
    let note = format!("the driver refuses {name}, the next variant of attention runs");
    assert_eq!(refused.notes(&note), 1, "{}", refused.run.err);
    let again = layered.run(&switch, &cache, &generate);
    assert_eq!(tokens(&again), tokens(&want));
    assert_eq!(again.notes("refuses"), 0, "{}", again.run.err);
    assert!(!again.modules().contains(hash), "asked again");
}

#[test]
fn a_variant_with_wrong_results_fails_its_trial_once() {
    let Some(device) = newer() else {
        return;
    };
    let scratch = Scratch::new("layer-spoiled");
    let graph = scratch.file("product.tercet", PRODUCT_F16);
    let [x, w] = operands(&scratch, [72, 136, 160], true);
    let run = [
        "run", &graph, "-i", &x, "-i", &w, "--device", "vulkan", "--json",
    ];
    let explain = ["explain", &graph, "--device", "vulkan", "--steps"];
    let layered = LayeredDevice::new(&device, &scratch);
    let plain = scratch.path("plain");
    let first = layered.run("", &plain, &run);
    assert_eq!(first.run.err, "", "no trial fails");
    assert_eq!(
        chosen(&layered.run("", &plain, &explain).run.out),
        "matrices"
    );
    // The trials ran, so the modules of this start are those of the graph.
    let want = layered.run("", &plain, &run);
    assert!(first.modules().len() > want.modules().len(), "no trial ran");
    let without = [&run[..], &["--without", "many=matrices"]].concat();
    let others = layered.run("", &plain, &without);
    let mut only = want.modules();
    only.retain(|module| !others.modules().contains(module));
    let hash = only.first().expect("a kernel on matrices");

    let (cache, switch) = (scratch.path("spoiled"), format!("spoil={hash}"));
    let spoiled = layered.run(&switch, &cache, &run);
    assert_close(&spoiled.values(), &want.values(), 4e-3);
    let note = "the trial of many=matrices failed";
    assert_eq!(spoiled.notes(note), 1, "{}", spoiled.run.err);
    assert_eq!(spoiled.run.err.lines().count(), 1, "{}", spoiled.run.err);
    let again = layered.run(&switch, &cache, &run);
    assert_eq!(again.run.err, "");
    assert!(!again.modules().contains(hash), "a second trial ran");
    assert_eq!(again.values(), spoiled.values());
    let plan = layered.run(&switch, &cache, &explain).run.out;
    assert_ne!(chosen(&plan), "matrices");
    assert!(plan.contains(note), "{plan}");
    // Without the trial, the values would be wrong.
    let forced = [&run[..], &["--force", "many=matrices"]].concat();
    let wrong = layered.run(&switch, &cache, &forced).values();
    let differs = wrong
        .iter()
        .zip(want.values())
        .any(|(a, b)| (a - b).abs() > 0.1);
    assert!(differs, "the layer spoils nothing");
}

#[test]
fn portability_drivers_are_found_and_used_within_their_limits() {
    let scratch = Scratch::new("layer-portability");
    let model = scratch.file("model.tercet", MODEL);
    for device in software_devices() {
        let layered = LayeredDevice::new(&device, &scratch);
        let cache = scratch.path("cache");
        // The loader hides such drivers from programs that do not ask for them.
        let driver = layered
            .layer
            .portability_driver(&device.manifest())
            .unwrap();
        let variables = [("VK_DRIVER_FILES", driver.into_os_string())];
        let list = ["devices", "--json"];
        let listed = device
            .command(&variables, Path::new(&cache), &list)
            .output();
        let listed: Value = serde_json::from_slice(&listed.unwrap().stdout).unwrap();
        let is_found = |d: &Value| d["name"] == "vulkan" && d["usable"] == true;
        assert!(listed.as_array().unwrap().iter().any(is_found), "{listed}");
        let verify = ["verify", &model, "--device", "vulkan", "--optimized"];
        let verified = layered.run("portability", &cache, &verify);
        assert!(verified.run.out.contains("agrees"), "{}", verified.run.out);
        assert_eq!(verified.violations(), Vec::<&String>::new());
        assert!(!verified.modules().is_empty());
    }
}
