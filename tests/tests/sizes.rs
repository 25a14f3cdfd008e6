//! Tests of one compiled encoder at many sizes: nothing is compiled again, and commands are
//! recorded once per combination of branches that sizes select.
#![cfg(feature = "vulkan")]

use tercet::{Backend, CompileOptions, DType, Device, Tensor};
use tercet_models::{DummyWeights, Encoder, EncoderDims, EncoderOutput, EncoderSpec, Weights};
use tercet_tests::executors;
use tercet_tests::suites::symbolic::{self, SymbolicGraph};
use tercet_vulkan::{VulkanBackend, VulkanOptions};

type Failure = Box<dyn std::error::Error>;

/// Maximum number of recorded combinations of branches: one, few or many rows, times few or many
/// queries.
const MAX_COMBINATIONS: u64 = 6;

/// Maximum difference between two summation orders of the same F32 model.
const REORDERED: f32 = 1e-4;

#[test]
fn an_encoder_at_thirty_sizes_records_once_for_each_way() -> Result<(), Failure> {
    let required = executors()
        .iter()
        .any(|e| e.name == "vulkan" && e.is_required());
    // A separate device, because the counters are per device.
    let backend = match VulkanBackend::new(VulkanOptions::default()) {
        Ok(backend) => backend,
        Err(e) if required => return Err(e.into()),
        Err(e) => {
            eprintln!("not run: {e}");
            return Ok(());
        }
    };
    let config = EncoderSpec::bert(EncoderDims {
        hidden: 64,
        layers: 2,
        heads: 2,
        ffn: 128,
        vocab: 100,
        context: 64,
    });
    let weights = Weights::Dummy(DummyWeights::dense());
    let bert = Encoder::build(
        &config,
        &weights,
        &EncoderOutput::mean_normalized(),
        DType::F32,
    )?;
    let options = CompileOptions::new().bound("b", 5).bound("s", 48);
    let mut exe = backend.compile(&bert.model.graph, &options)?;
    for (name, tensor) in &bert.model.params {
        exe.set_param(name, tensor.clone())?;
    }
    let mut cpu = bert.compile(&Device::cpu(), 5, 48)?;
    let (mut state, mut compiled) = (7u32, None);
    let loaded = backend.counters().recorded;
    let mut recorded = loaded;
    for run in 0..150 {
        // Repeat the previous sizes. A size that ran four times is recorded for itself, and then
        // nothing may be recorded again.
        if run % 30 == 0 {
            state = 7;
        }
        if run == 30 || run == 120 {
            recorded = backend.counters().recorded;
            let sizes = if run == 30 { 0 } else { 30 };
            assert!(
                recorded <= loaded + MAX_COMBINATIONS + sizes,
                "{loaded} to {recorded}"
            );
        }
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (batch, seq) = (
            1 + (state >> 16) as usize % 5,
            1 + (state >> 20) as usize % 48,
        );
        let n = batch * seq;
        let ids: Vec<i32> = (0..n).map(|i| (i * 31 % 100) as i32).collect();
        let ids = Tensor::from_slice(&[batch, seq], &ids)?;
        let type_ids = Tensor::from_slice(&[batch, seq], &vec![0i32; n])?;
        let mask = Tensor::from_bools(&[batch, seq], &vec![true; n])?;
        let inputs = [("ids", &ids), ("type_ids", &type_ids), ("mask", &mask)];
        let (got, want) = (exe.run(&inputs)?, cpu.run(&inputs)?);
        let (got, want) = (got[0].as_slice::<f32>()?, want[0].as_slice::<f32>()?);
        assert_eq!(got.len(), want.len(), "run {run}");
        let worst = got
            .iter()
            .zip(want)
            .fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(worst < REORDERED, "run {run}, {batch} x {seq}: {worst}");
        let counters = backend.counters();
        let pipelines = counters.pipelines_compiled;
        assert_eq!(*compiled.get_or_insert(pipelines), pipelines, "run {run}");
        if run >= 120 {
            assert_eq!(counters.recorded, recorded, "run {run}, {batch} x {seq}");
        }
    }
    Ok(())
}

/// Windows, resizes and transforms of symbols: after a first run at each size, other sizes record
/// and compile nothing, because they have the same steps.
#[test]
fn graphs_of_symbols_record_nothing_between_ten_sizes() -> Result<(), Failure> {
    let required = executors()
        .iter()
        .any(|e| e.name == "vulkan" && e.is_required());
    let backend = match VulkanBackend::new(VulkanOptions::default()) {
        Ok(backend) => backend,
        Err(e) if required => return Err(e.into()),
        Err(e) => {
            eprintln!("not run: {e}");
            return Ok(());
        }
    };
    for of in symbolic::GRAPHS {
        let graph = of.graph();
        let mut exe = backend.compile(&graph, &SymbolicGraph::options())?;
        let mut counted = None;
        for (run, sizes) in of.sizes.into_iter().enumerate() {
            let inputs = SymbolicGraph::inputs(&graph, sizes)?;
            let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            symbolic::compare(&graph, &inputs, &exe.run(&given)?)?;
            let counters = backend.counters();
            let found = (counters.recorded, counters.pipelines_compiled);
            let first = *counted.get_or_insert(found);
            assert_eq!(found, first, "{} run {run} at {sizes:?}", of.name);
        }
    }
    Ok(())
}
