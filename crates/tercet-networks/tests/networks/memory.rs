//! Tests that configurations whose sizes exceed memory are typed errors.

use tercet::DType;
use tercet_networks::{
    Decoder, DecoderOptions, DummyWeights, Encoder, EncoderDims, EncoderOutput, EncoderSpec,
    HfFolder, ModelError, Weights,
};

type Failure = Box<dyn std::error::Error>;

#[test]
fn a_context_beyond_memory_is_an_error() -> Result<(), Failure> {
    let config = HfFolder::open(crate::common::data("tiny-rust-llama"))?.decoder_spec()?;
    for context in [(1 << 24) + 1, 1 << 40, usize::MAX] {
        let mut options = DecoderOptions::new(&config);
        options.context = context;
        let weights = Weights::Dummy(DummyWeights::dense());
        let built = Decoder::build(&config, &weights, options);
        let error = built.err().ok_or("no machine has that much")?;
        assert!(matches!(error, ModelError::Unsupported(_)), "{error}");
    }
    Ok(())
}

#[test]
fn made_up_weights_beyond_memory_are_an_error() -> Result<(), Failure> {
    let config = EncoderSpec::bert(EncoderDims {
        hidden: 1 << 20,
        layers: 1,
        heads: 2,
        ffn: 512,
        vocab: 1 << 30,
        context: 512,
    });
    let weights = Weights::Dummy(DummyWeights::dense());
    let built = Encoder::build(
        &config,
        &weights,
        &EncoderOutput::mean_normalized(),
        DType::F32,
    );
    let error = built.err().ok_or("no machine has that much")?;
    assert!(matches!(error, ModelError::WeightBytes { .. }), "{error}");
    Ok(())
}
