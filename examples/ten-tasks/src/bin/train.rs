//! Fits a line to samples by gradient descent.

use std::error::Error;

use tercet::train::{AdamW, StepInputs, Trainer};
use tercet::{DType, Device, GraphBuilder, Tensor, TensorError, Type};

/// Samples of `y = 2 x + 1`. The second column of `x` is the constant 1.
fn samples(_step: u64) -> Result<Option<StepInputs>, TensorError> {
    let x = Tensor::from_slice(&[4, 2], &[-1f32, 1.0, 0.0, 1.0, 1.0, 1.0, 2.0, 1.0])?;
    let y = Tensor::from_slice(&[4, 1], &[-1f32, 1.0, 3.0, 5.0])?;
    Ok(Some(vec![("x".to_string(), x), ("y".to_string(), y)]))
}

/// The type of a matrix.
fn f32s(rows: usize, columns: usize) -> Type {
    Type::new(DType::F32, [rows, columns])
}

fn main() -> Result<(), Box<dyn Error>> {
    let b = GraphBuilder::new();
    let guess = b.input("x", f32s(4, 2)).matmul(b.state("w", f32s(2, 1)));
    let loss = (guess - b.input("y", f32s(4, 1))).square().mean().value()?;
    let (device, rule) = (Device::auto()?, AdamW::default());
    let start = Tensor::from_slice(&[2, 1], &[0f32, 0.0])?;
    let mut trainer = Trainer::minimize(&device, &b.finish()?, loss, &[("w", start)], &rule, 0.1)?;
    trainer.fit(300, samples, &mut [])?;
    println!("{:.1?}", trainer.state("w")?.as_slice::<f32>()?);
    Ok(())
}
