//! Frozen matrices of a training graph have the float dtype of its computation.

use tercet::{DType, Scheme};
use tercet_ir::Op;
use tercet_networks::training::{DecoderTrainingOptions, FineTuneMode, LoraOptions, TrainingGraph};
use tercet_networks::{DecoderDims, DecoderSpec, DummyWeights, Weights};

/// The training graph of an adapter on a small decoder.
fn adapter_training(weights: DummyWeights, dtype: DType) -> TrainingGraph {
    let spec = DecoderSpec::llama(DecoderDims {
        hidden: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 96,
        vocab: 300,
        context: 128,
    });
    let options = DecoderTrainingOptions {
        dtype,
        ..DecoderTrainingOptions::new(2, 16, FineTuneMode::Lora(LoraOptions::new(8)))
    };
    TrainingGraph::decoder(&spec, &Weights::Dummy(weights), &options).unwrap()
}

/// The dtypes of the frozen matrices, without repetitions.
fn matrix_dtypes(training: &TrainingGraph) -> Vec<DType> {
    let params = training.params.iter();
    let mut dtypes: Vec<DType> = params
        .filter(|(_, tensor)| tensor.shape().len() == 2)
        .map(|(_, tensor)| tensor.dtype())
        .collect();
    dtypes.dedup();
    dtypes
}

#[test]
fn matrices_are_stored_in_the_dtype_of_the_computation() {
    let [half, packed] = [Scheme::F16, Scheme::Q8_0].map(DummyWeights::packed);
    let cases = [
        (half.clone(), DType::BF16, DType::BF16),
        (half.clone(), DType::F16, DType::F16),
        (DummyWeights::packed(Scheme::BF16), DType::F16, DType::F16),
        (DummyWeights::dense(), DType::BF16, DType::BF16),
        // F32 products read 16-bit weights directly, and quantized weights stay as they are.
        (half, DType::F32, DType::F16),
        (packed, DType::F16, DType::U8),
    ];
    for (weights, dtype, expected) in cases {
        let training = adapter_training(weights.clone(), dtype);
        assert_eq!(
            matrix_dtypes(&training),
            [expected],
            "{weights:?} in {dtype}"
        );
        let graph = &training.graph;
        for (_, node) in graph.nodes() {
            let reads_matrix = || {
                let operand = graph.node(node.inputs[0].node);
                matches!(operand.op, Op::Param(_)) && operand.outputs[0].shape.len() == 2
            };
            assert!(
                !matches!(node.op, Op::Cast(_)) || !reads_matrix(),
                "{weights:?} in {dtype}: a step casts a matrix"
            );
        }
    }
}
