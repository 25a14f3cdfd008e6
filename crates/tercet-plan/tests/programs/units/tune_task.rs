//! Tests of the helpers of autotuning tasks.

use tercet_ir::{DType, Tensor, TensorType};
use tercet_plan::internals::tuning::{element, spread_indices};

#[test]
fn places_are_spread_to_both_ends() {
    assert_eq!(spread_indices(10, 4).collect::<Vec<_>>(), [0, 3, 6, 9]);
    assert_eq!(spread_indices(2, 5).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(spread_indices(1, 5).collect::<Vec<_>>(), [0]);
}

#[test]
fn elements_are_those_of_the_tensor() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let values = [0.0, -1.5, 6e-8, 65504.0, f64::INFINITY];
        let t = Tensor::from_f64s(TensorType::new(dtype, &[5]), &values).unwrap();
        let found: Vec<f64> = (0..5).map(|at| element(&t, at)).collect();
        assert_eq!(found, t.to_f64s());
    }
}
