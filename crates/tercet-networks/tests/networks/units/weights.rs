use tercet::{DType, Scheme};
use tercet_networks::{DummyWeights, Weights};

#[test]
fn training_takes_the_float_dtype_of_the_weights_if_the_device_gains() {
    let packed = |scheme| Weights::Dummy(DummyWeights::packed(scheme));
    let [half, brain, quantized] = [Scheme::F16, Scheme::BF16, Scheme::Q4K].map(packed);
    let dense = Weights::Dummy(DummyWeights::dense());
    let both = [DType::F16, DType::BF16];
    assert_eq!(half.dtype_of_training(&both), DType::F16);
    assert_eq!(quantized.dtype_of_training(&both), DType::F16);
    assert_eq!(brain.dtype_of_training(&both), DType::BF16);
    assert_eq!(half.dtype_of_training(&[DType::BF16]), DType::BF16);
    // BF16 has a larger range than F16.
    assert_eq!(brain.dtype_of_training(&[DType::F16]), DType::F32);
    assert_eq!(dense.dtype_of_training(&both), DType::F32);
    assert_eq!(half.dtype_of_training(&[]), DType::F32);
}
