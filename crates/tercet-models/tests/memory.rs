//! Sizes of configurations that memory cannot hold are typed errors.

use tercet::DType;
use tercet_models::{
    Bert, BertActivation, BertConfig, Decoder, DecoderOptions, HfFolder, MadeUp, ModelError,
    Pooling, Weights,
};

mod common;

type Failure = Box<dyn std::error::Error>;

#[test]
fn a_context_beyond_memory_is_an_error() -> Result<(), Failure> {
    let config = HfFolder::open(common::data("tiny-rust-llama"))?.decoder_spec()?;
    for context in [(1 << 24) + 1, 1 << 40, usize::MAX] {
        let mut options = DecoderOptions::new(&config);
        options.context = context;
        let weights = Weights::MadeUp(MadeUp::dense());
        let built = Decoder::build(&config, &weights, options);
        let error = built.err().ok_or("no machine has that much")?;
        assert!(matches!(error, ModelError::Unsupported(_)), "{error}");
    }
    Ok(())
}

#[test]
fn made_up_weights_beyond_memory_are_an_error() -> Result<(), Failure> {
    let config = BertConfig {
        hidden: 1 << 20,
        layers: 1,
        heads: 2,
        ffn: 512,
        vocab: 1 << 30,
        max_positions: 512,
        token_types: 2,
        layer_norm_eps: 1e-12,
        activation: BertActivation::Gelu,
        pad: 0,
    };
    let weights = Weights::MadeUp(MadeUp::dense());
    let built = Bert::build(&config, &weights, Pooling::MeanNormalized, DType::F32);
    let error = built.err().ok_or("no machine has that much")?;
    assert!(matches!(error, ModelError::WeightBytes { .. }), "{error}");
    Ok(())
}
