//! Trials: variants that run once on a small problem before programs use them, because drivers are
//! known to compute some of them wrong.

use tercet_ir::backend::OutputSelection;
use tercet_ir::{CompileError, DType, VariantName};

use super::{TunableBackend, TuneFailure, TuneTask, check, compile_with_operands, own, plan};
use crate::caps::{CoopType, DeviceCaps, WgslCoopType};
use crate::tuning::{TuningTable, WeightLayout};

/// A variant and a problem that it must compute right.
#[derive(Debug)]
pub struct VariantTrial {
    /// The variant.
    pub name: VariantName,
    /// The problem.
    pub task: TuneTask,
}

/// Name of the trials of matmuls on cooperative matrices in WGSL.
pub const WGSL_MATRICES_TRIAL: &str = "many=wgsl_matrices";

/// Name of the trials of attention on cooperative matrices in WGSL.
pub const WGSL_ATTENTION_TRIAL: &str = "attention=wgsl_matrices";

const LARGE_M: &str = "many";
const ATTENTION: &str = "attention";
const WGSL_MATRICES: &str = "wgsl_matrices";

/// The trials of a device: the variants on cooperative matrices, with sizes that are no multiples of
/// tiles. Empty for a device without such matrices.
pub fn variant_trials(caps: &DeviceCaps) -> Vec<VariantTrial> {
    let mut trials = trials_of_spirv(caps);
    for shape in &caps.coop_wgsl {
        let dtype = match shape.ty {
            WgslCoopType::F16 => DType::F16,
            WgslCoopType::F32 => DType::F32,
        };
        for weights in [WeightLayout::NMajor(dtype), WeightLayout::KMajor(dtype)] {
            let product = TuneTask::product(dtype, weights, [72, 136, 160]);
            let name = VariantName {
                family: LARGE_M.to_string(),
                variant: WGSL_MATRICES.to_string(),
            };
            trials.extend(product.ok().map(|task| VariantTrial { name, task }));
        }
        let name = VariantName {
            family: ATTENTION.to_string(),
            variant: WGSL_MATRICES.to_string(),
        };
        let attention = TuneTask::attention(dtype, [2, 2, 72, 72, 64]);
        trials.extend(attention.ok().map(|task| VariantTrial { name, task }));
    }
    trials
}

/// The trials of SPIR-V kernels.
fn trials_of_spirv(caps: &DeviceCaps) -> Vec<VariantTrial> {
    const MATRICES: &str = "matrices";
    let dtype = match caps.coop.iter().any(|shape| shape.ty == CoopType::F16) {
        true => DType::F16,
        false if caps.coop.is_empty() => return Vec::new(),
        false => DType::BF16,
    };
    let product = TuneTask::product(dtype, WeightLayout::NMajor(dtype), [72, 136, 160]);
    let tasks = [
        ("many", product),
        (ATTENTION, TuneTask::attention(dtype, [2, 2, 72, 72, 64])),
        ("conv", TuneTask::conv(dtype, [1, 32, 12, 40, 3])),
    ];
    let tasks = tasks.into_iter().filter_map(|(family, task)| {
        let name = VariantName {
            family: family.to_string(),
            variant: MATRICES.to_string(),
        };
        Some(VariantTrial {
            name,
            task: task.ok()?,
        })
    });
    tasks.collect()
}

/// Whether a variant computes its trial right on a device. `None` if it does not support the
/// problem there, or if the device fails for another reason.
pub fn try_variant(device: &dyn TunableBackend, trial: &VariantTrial) -> Option<bool> {
    let VariantTrial { name, task } = trial;
    let variant = name.variant.as_str();
    let program = plan(device.caps(), &task.graph, TuningTable::always(variant)).ok()?;
    own(&program).filter(|taken| name.is(taken.family, taken.variant.0))?;
    let run = || -> Result<(), TuneFailure> {
        let mut exe = compile_with_operands(device, task, variant)?;
        exe.submit(&[], OutputSelection::Only(&[]))?;
        exe.wait(&mut Vec::new())?;
        check(&mut *exe, task)
    };
    match run() {
        Ok(()) => Some(true),
        Err(TuneFailure::Other(_) | TuneFailure::Compile(CompileError::Kernel { .. })) => {
            Some(false)
        }
        Err(_) => None,
    }
}
