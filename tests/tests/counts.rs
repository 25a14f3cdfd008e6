//! Tests of the number of dispatches and barriers per layer of models on a large GPU.

use tercet::{Bindings, CompileOptions, DType, Graph, Scheme};
use tercet_models::{
    Decoder, DecoderDims, DecoderOptions, DecoderSpec, DummyWeights, Encoder, EncoderDims,
    EncoderOutput, EncoderSpec, Weights,
};
use tercet_plan::{DeviceCaps, LaunchSizes, compile};

type Failure = Box<dyn std::error::Error>;

/// The numbers of dispatches and barriers.
type Count = [usize; 2];

fn count(
    graph: &Graph,
    bounds: &[(&str, usize)],
    sizes: &[(&str, usize)],
) -> Result<Count, Failure> {
    let options = bounds.iter();
    let options = options.fold(CompileOptions::new(), |o, (name, n)| o.bound(name, *n));
    let program = compile(graph, &options, &DeviceCaps::h200())?;
    let sizes = sizes
        .iter()
        .fold(Bindings::new(), |s, (name, n)| s.with(name, *n));
    let mut launch = LaunchSizes::default();
    launch.compute(&program, &sizes, tercet_ir::random::RngState::default())?;
    let played = program.active_steps(&program.steps, &launch.selected_branches);
    Ok([played.len(), played.iter().filter(|p| p.barrier).count()])
}

/// The increase per additional layer, and the total for `layers` layers.
fn per_layer(
    of: impl Fn(usize) -> Result<Count, Failure>,
    layers: usize,
) -> Result<[Count; 2], Failure> {
    let (two, three) = (of(2)?, of(3)?);
    let layer = [three[0] - two[0], three[1] - two[1]];
    let all = [0, 1].map(|i| two[i] + layer[i] * (layers - 2));
    Ok([layer, all])
}

fn bert(layers: usize, dtype: DType) -> Result<Encoder, Failure> {
    let config = EncoderSpec::bert(EncoderDims {
        hidden: 128,
        layers,
        heads: 2,
        ffn: 512,
        vocab: 100,
        context: 512,
    });
    let weights = Weights::Dummy(DummyWeights::dense());
    Ok(Encoder::build(
        &config,
        &weights,
        &EncoderOutput::mean_normalized(),
        dtype,
    )?)
}

#[test]
fn an_encoder_layer() -> Result<(), Failure> {
    // F32 matmuls with few tiles use split-K, which adds a step each. Split-F16 attention has five
    // steps: three conversions of queries, keys and values, the attention itself, and the fallback
    // for values outside the split-F16 range.
    for (dtype, most) in [(DType::F16, 7), (DType::F32, 15)] {
        let of = |layers| {
            let bert = bert(layers, dtype)?;
            let sizes = [("b", 1), ("s", 128)];
            count(&bert.model.graph, &sizes, &sizes)
        };
        let [layer, all] = per_layer(of, 12)?;
        println!("bert-base {dtype}: {layer:?} a layer, {all:?} for 12");
        assert!(layer.iter().all(|n| *n <= most), "{dtype}: {layer:?}");
    }
    Ok(())
}

#[test]
fn a_decoder_layer() -> Result<(), Failure> {
    for scheme in [Scheme::F16, Scheme::Q8_0, Scheme::Q4K] {
        // With F32 activations, attention of a prompt has five steps. If there are few key heads,
        // attention also combines split-KV chunks.
        for (tokens, most) in [(1, [7, 7]), (512, [17, 15])] {
            let of = |layers| {
                let config = DecoderSpec::llama(DecoderDims {
                    hidden: 512,
                    layers,
                    heads: 8,
                    kv_heads: 2,
                    head_dim: 64,
                    ffn: 1536,
                    vocab: 256,
                    context: 2048,
                });
                let weights = Weights::Dummy(DummyWeights::packed(scheme));
                let llama = Decoder::build(&config, &weights, DecoderOptions::new(&config))?;
                let bounds = [("s", 512), ("r", 1)];
                count(&llama.model.graph, &bounds, &[("s", tokens), ("r", 1)])
            };
            let [layer, all] = per_layer(of, 22)?;
            println!(
                "llama {}, {tokens} tokens: {layer:?} a layer, {all:?} for 22",
                scheme.name()
            );
            let is_less = layer[0] <= most[0] && layer[1] <= most[1];
            assert!(is_less, "{}, {tokens}: {layer:?}", scheme.name());
        }
    }
    Ok(())
}
