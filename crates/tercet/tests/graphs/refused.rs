//! Kernels that the driver refuses: the next variant of the family runs, the cache folder remembers
//! it, and `explain` reports it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tercet::{Backend, CompileError, CompileOptions, DType, DeviceSwitches, Graph, Tensor, Type};

/// Rows, columns and reduction length of a matmul with many rows.
const SIZES: [usize; 3] = [40, 32, 64];

/// A temporary folder, removed on drop.
struct CacheFolder(PathBuf);

impl CacheFolder {
    fn new(name: &str) -> CacheFolder {
        let dir = std::env::temp_dir().join(format!("tercet-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        CacheFolder(dir)
    }
}

impl Drop for CacheFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn graph() -> Graph {
    let [m, n, k] = SIZES;
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [m, k])).unwrap();
    let w = g.input("w", Type::new(DType::F32, [k, n])).unwrap();
    let y = g.matmul(x, w).unwrap();
    g.output("y", y).unwrap();
    g
}

fn run(backend: &dyn Backend) -> Result<Vec<f32>, CompileError> {
    let [m, n, k] = SIZES;
    let mut exe = backend.compile(&graph(), &CompileOptions::new())?;
    let small = |count: usize| (0..count).map(|i| (i % 7) as f32).collect::<Vec<_>>();
    let x = Tensor::from_slice(&[m, k], &small(m * k)).unwrap();
    let w = Tensor::from_slice(&[k, n], &small(k * n)).unwrap();
    let y = exe.run(&[("x", &x), ("w", &w)]).unwrap();
    Ok(y[0].as_slice::<f32>().unwrap().to_vec())
}

/// Opens a backend with a cache folder and switches; the second function makes its driver refuse
/// kernels.
type OpenDevice = (Arc<dyn Backend>, Box<dyn Fn(&str)>);

/// Name of the variant of the matmul and the explanation of the program.
fn chosen(backend: &dyn Backend) -> (String, tercet::Explanation) {
    let plan = backend.explain(&graph(), &CompileOptions::new()).unwrap();
    let line = plan
        .listing
        .lines()
        .find(|l| l.contains("mat_mul ") && l.contains("(cost "));
    let name = line.unwrap().split_whitespace().nth(3).unwrap().to_string();
    (name, plan)
}

/// The start of the names of the matmul's kernels, up to the constants.
fn kernel(plan: &tercet::Explanation) -> String {
    let of = plan.kernels.iter().find(|k| k.op == "mat_mul").unwrap();
    let end = of
        .kernel
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    // With the space, `gemm` does not stand for `gemm_quads`.
    of.kernel[..end.map_or(of.kernel.len(), |at| at + 1)].to_string()
}

fn check(name: &str, open: &dyn Fn(&Path, DeviceSwitches) -> Option<OpenDevice>) {
    let folder = CacheFolder::new(&format!("refused-{name}"));
    let Some((backend, refuse)) = open(&folder.0, DeviceSwitches::default()) else {
        return;
    };
    let want = run(&*backend).unwrap();
    let (first, plan) = chosen(&*backend);
    assert!(plan.switches.is_empty(), "{plan}");
    let refused = kernel(&plan);
    drop((backend, refuse));

    let (backend, refuse) = open(&folder.0, DeviceSwitches::default()).unwrap();
    refuse(&refused);
    assert_eq!(run(&*backend).unwrap(), want, "{name}");
    let (next, plan) = chosen(&*backend);
    assert_ne!(next, first, "{name}");
    let line = format!("the driver refused many={first}: ");
    assert!(plan.switches.iter().any(|l| l.starts_with(&line)), "{plan}");
    drop((backend, refuse));

    // The next start takes the next variant at once, although the driver would now accept the first.
    let (backend, _refuse) = open(&folder.0, DeviceSwitches::default()).unwrap();
    assert_eq!(chosen(&*backend).0, next, "{name}");
    assert_eq!(run(&*backend).unwrap(), want, "{name}");
    drop(backend);

    // A forced variant is not replaced: the error is the driver's.
    let force = DeviceSwitches::parse("", &format!("many={first}")).unwrap();
    let (backend, refuse) = open(&folder.0, force).unwrap();
    refuse(&refused);
    let e = run(&*backend).unwrap_err();
    assert!(
        matches!(&e, CompileError::Kernel { kernel, .. } if kernel.contains(&refused)),
        "{e}"
    );
    drop((backend, refuse));

    // If the driver refuses all variants, its error is reported.
    std::fs::remove_dir_all(&folder.0).unwrap();
    let (backend, refuse) = open(&folder.0, DeviceSwitches::default()).unwrap();
    refuse("");
    let e = run(&*backend).unwrap_err();
    assert!(matches!(e, CompileError::Kernel { .. }), "{e}");
}

/// A variant of the matmul whose trial expects other values.
#[cfg(feature = "vulkan")]
fn wrong_trial(variant: &str) -> tercet_plan::tune::VariantTrial {
    use tercet_plan::{WeightLayout, tune};
    let layout = WeightLayout::NMajor(DType::F32);
    let mut task = tune::TuneTask::product(DType::F32, layout, SIZES).unwrap();
    task.corrupt_expected();
    let name = format!("many={variant}").parse().unwrap();
    tune::VariantTrial { name, task }
}

#[cfg(feature = "vulkan")]
#[test]
fn a_variant_whose_trial_fails_is_replaced_and_not_tried_again() {
    use tercet_vulkan::{VulkanBackend, VulkanOptions};
    let folder = CacheFolder::new("trial");
    let open = || {
        let options = VulkanOptions {
            cache_dir: Some(folder.0.clone()),
            ..VulkanOptions::default()
        };
        VulkanBackend::new(options)
    };
    let Ok(backend) = open() else {
        return;
    };
    let want = run(&backend).unwrap();
    let (first, _) = chosen(&backend);
    backend.try_variants(&[wrong_trial(&first)]);
    let (next, plan) = chosen(&backend);
    assert_ne!(next, first);
    let line = format!("the trial of many={first} failed");
    assert!(plan.switches.contains(&line), "{plan}");
    assert_eq!(run(&backend).unwrap(), want);
    drop(backend);

    let backend = open().unwrap();
    let before = backend.counters().submissions;
    backend.try_variants(&[wrong_trial(&first)]);
    assert_eq!(backend.counters().submissions, before, "a second trial ran");
    assert_eq!(chosen(&backend).0, next);
    assert_eq!(run(&backend).unwrap(), want);
}

#[cfg(feature = "vulkan")]
#[test]
fn vulkan_takes_the_next_variant_and_remembers_it() {
    use tercet_vulkan::{VulkanBackend, VulkanOptions};
    check("vulkan", &|dir, switches| {
        let options = VulkanOptions {
            cache_dir: Some(dir.to_path_buf()),
            switches,
            ..VulkanOptions::default()
        };
        let backend = Arc::new(VulkanBackend::new(options).ok()?);
        let own = Arc::clone(&backend);
        Some((backend, Box::new(move |text| own.simulate_refusal(text))))
    });
}

#[cfg(feature = "wgpu")]
#[test]
fn wgpu_takes_the_next_variant_and_remembers_it() {
    use tercet_wgpu::{WgpuBackend, WgpuOptions};
    check("wgpu", &|dir, switches| {
        let options = WgpuOptions {
            cache_dir: Some(dir.to_path_buf()),
            switches,
            ..WgpuOptions::new()
        };
        let backend = Arc::new(WgpuBackend::new(&options).ok()?);
        let own = Arc::clone(&backend);
        Some((backend, Box::new(move |text| own.simulate_refusal(text))))
    });
}
