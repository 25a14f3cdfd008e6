//! Tests of cooperative matrices in WGSL, on adapters that have them.

use tercet_ir::{DType, DeviceSwitches, Scheme, VariantName};
use tercet_plan::WgslCoopType;
use tercet_wgpu::tune::{self, CandidateOutcome, TuneTask, VariantTrial, WGSL_ATTENTION_TRIAL};
use tercet_wgpu::{GemmProblem, WeightLayout, WgpuBackend, WgpuOptions};

use super::{Done, Test};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("wgsl_matrices_on_every_tiling", on_every_tiling),
    ("wgsl_matrices_of_packed_weights", of_packed_weights),
    ("wgsl_matrices_of_attention", of_attention),
    ("wgsl_matrices_are_switched_off", are_switched_off),
];

/// The adapter without passthrough of SPIR-V; `None` if it has no matrices for WGSL then.
///
/// # Panics
/// If `TERCET_REQUIRE` names the matrices and there are none.
fn opened(without: &str) -> Result<Option<WgpuBackend>, Box<dyn std::error::Error>> {
    let backend = WgpuBackend::new(&WgpuOptions {
        timings: true,
        switches: DeviceSwitches::parse(without, "")?,
        ..WgpuOptions::new()
    })?;
    let required = std::env::var("TERCET_REQUIRE").unwrap_or_default();
    let is_required = required.split(',').any(|name| name.trim() == "coop");
    let has_some = !backend.caps().coop_wgsl.is_empty();
    assert!(
        has_some || !is_required || without != "passthrough",
        "{} has no matrices for WGSL, or failed their trial",
        backend.adapter()
    );
    Ok(has_some.then_some(backend))
}

fn dtype_of(ty: WgslCoopType) -> DType {
    match ty {
        WgslCoopType::F16 => DType::F16,
        WgslCoopType::F32 => DType::F32,
    }
}

fn on_every_tiling(_: &WgpuBackend) -> Done {
    let Some(backend) = opened("passthrough")? else {
        return Ok(());
    };
    for shape in &backend.caps().coop_wgsl {
        for b_transposed in [false, true] {
            let problem = GemmProblem {
                dtype: dtype_of(shape.ty),
                b_transposed,
                m: 77,
                n: 140,
                k: 100,
            };
            let task = TuneTask::tilings(&problem)?;
            let mut names = tune::candidates(backend.caps(), &task);
            names.retain(|name| name.contains("/wgsl"));
            assert!(names.len() > 1, "{}: {names:?}", task.key);
            for (name, outcome) in tune::measure(&backend, &task, &names).candidates {
                match outcome {
                    CandidateOutcome::Seconds(seconds) => assert!(seconds > 0.0, "{name}"),
                    CandidateOutcome::Failed(why) => panic!("{} {name}: {why}", task.key),
                }
            }
        }
    }
    Ok(())
}

fn of_packed_weights(_: &WgpuBackend) -> Done {
    let Some(backend) = opened("passthrough")? else {
        return Ok(());
    };
    for shape in &backend.caps().coop_wgsl {
        for scheme in [Scheme::Q4_0, Scheme::Q6K, Scheme::Iq2S] {
            let weights = WeightLayout::Packed(scheme);
            let task = TuneTask::product(dtype_of(shape.ty), weights, [72, 136, 256])?;
            let key = task.key.clone();
            let name = VariantName {
                family: "many".to_string(),
                variant: "wgsl_matrices".to_string(),
            };
            let outcome = tune::try_variant(&backend, &VariantTrial { name, task });
            assert_eq!(outcome, Some(true), "{key}");
        }
    }
    Ok(())
}

fn of_attention(_: &WgpuBackend) -> Done {
    let Some(backend) = opened("passthrough")? else {
        return Ok(());
    };
    for shape in &backend.caps().coop_wgsl {
        // KV heads, query heads per KV head, queries, keys, head size.
        for sizes in [[2, 4, 33, 65, 64], [3, 1, 40, 130, 20]] {
            let task = TuneTask::attention(dtype_of(shape.ty), sizes)?;
            let key = task.key.clone();
            let name = WGSL_ATTENTION_TRIAL.parse::<VariantName>()?;
            let outcome = tune::try_variant(&backend, &VariantTrial { name, task });
            assert_eq!(outcome, Some(true), "{key}");
        }
    }
    Ok(())
}

fn are_switched_off(_: &WgpuBackend) -> Done {
    for without in ["passthrough,coop", "passthrough,subgroups"] {
        if let Some(backend) = opened(without)? {
            return Err(format!("{without}: {:?}", backend.caps().coop_wgsl).into());
        }
    }
    Ok(())
}
