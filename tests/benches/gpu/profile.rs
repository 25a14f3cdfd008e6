//! Profiles of models: device times of the kernels, summed over one run.

use std::collections::HashMap;
use std::time::Instant;

use tercet::{DType, Scheme, StepTime};
use tercet_models::{Decoder, DecoderOptions, DummyWeights, Weights};

use crate::kernels::WARM_UP;
use crate::models::{Batch, bert_base, build, llama_1b, llama_8b};
use crate::{Bench, Result};

/// The number of kernels shown per model.
const SHOWN: usize = 14;

pub(crate) fn profile(b: &mut Bench) -> Result<()> {
    let model = build(&bert_base(b), DType::F16)?;
    for batch in [1, 32] {
        let mut exe = model.compile(&b.timed, batch, 128)?;
        let batch_data = Batch::new(batch, 128)?;
        let mut outputs = Vec::new();
        let began = Instant::now();
        while began.elapsed() < WARM_UP {
            exe.run_into(&batch_data.inputs(), &mut outputs)?;
        }
        let steps = exe.timings();
        show(b, &format!("bert-base f16 b{batch}"), &steps);
    }
    for (name, config, scheme, dtype) in [
        ("llama 1.1B F16", llama_1b(b), Scheme::F16, DType::F32),
        ("llama 1.1B Q4_K", llama_1b(b), Scheme::Q4K, DType::F32),
        ("llama 8B Q4_K in f16", llama_8b(b), Scheme::Q4K, DType::F16),
    ] {
        let weights = Weights::Dummy(DummyWeights::packed(scheme));
        let options = DecoderOptions {
            dtype,
            ..DecoderOptions::new(&config)
        };
        let model = Decoder::build(&config, &weights, options)?;
        let mut generator = model.generator(&b.timed)?;
        generator.skip_logits();
        let prompt: Vec<u32> = (0..512).map(|i| i * 31 % 500).collect();
        generator.forward(&prompt[..1])?;
        let began = Instant::now();
        while began.elapsed() < WARM_UP {
            generator.truncate(0);
            generator.forward(&prompt)?;
        }
        show(b, &format!("{name} prefill 512"), &generator.timings());
        for token in 0..20 {
            generator.forward(&[token])?;
        }
        show(b, &format!("{name} decode"), &generator.timings());
    }
    Ok(())
}

/// Prints the slowest kernels with their numbers of calls.
pub(crate) fn show(b: &mut Bench, name: &str, steps: &[StepTime]) {
    show_some(b, name, steps, SHOWN);
}

/// Prints all kernels with their numbers of calls.
pub(crate) fn show_all(b: &mut Bench, name: &str, steps: &[StepTime]) {
    show_some(b, name, steps, usize::MAX);
}

fn show_some(b: &mut Bench, name: &str, steps: &[StepTime], shown: usize) {
    let mut kernels: HashMap<(&str, &str), (u64, usize)> = HashMap::new();
    for step in steps {
        let sum = kernels.entry((step.op, &step.kernel)).or_default();
        *sum = (sum.0 + step.ns, sum.1 + 1);
    }
    let mut kernels: Vec<_> = kernels.into_iter().collect();
    kernels.sort_by_key(|(_, (ns, _))| std::cmp::Reverse(*ns));
    let all: u64 = steps.iter().map(|s| s.ns).sum();
    let calls = Some((steps.len() as f64, "calls"));
    b.report
        .row(&format!("{name}, steps"), all as f64 * 1e-9, calls);
    for ((op, kernel), (ns, calls)) in kernels.into_iter().take(shown) {
        let seconds = ns as f64 * 1e-9;
        let row = format!("  {op} {kernel}");
        b.report.row(&row, seconds, Some((calls as f64, "calls")));
    }
}
