//! Adds an operator that Tercet does not have.

use std::error::Error;

use tercet::attr::AttrLiteral;
use tercet::custom::CustomOp;
use tercet::{CompileOptions, DType, Device, EvalError, GraphBuilder, Tensor};
use tercet::{TensorType, Type, TypeError};

/// The cube of each element.
#[derive(Debug)]
struct Cube;

impl CustomOp for Cube {
    fn name(&self) -> &str {
        "example.cube"
    }

    fn attrs(&self) -> Vec<(&'static str, AttrLiteral)> {
        Vec::new()
    }

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        Ok(operands.iter().map(|&ty| ty.clone()).collect())
    }

    fn eval(&self, operands: &[&Tensor], _: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
        let cubes: Vec<f32> = operands[0]
            .as_slice::<f32>()?
            .iter()
            .map(|x| x.powi(3))
            .collect();
        Ok(vec![Tensor::from_slice(operands[0].shape(), &cubes)?])
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let b = GraphBuilder::new();
    let x = b.input("x", Type::new(DType::F32, [3]));
    b.output("y", x.map(|g, x| g.custom(Cube, &[x])) + 1.0);
    let mut exe = Device::cpu().compile(&b.finish()?, &CompileOptions::new())?;
    let x = Tensor::from_slice(&[3], &[1f32, 2.0, 3.0])?;
    let outputs = exe.run_named(&[("x", &x)])?;
    println!("{:?}", outputs.get("y")?.as_slice::<f32>()?);
    Ok(())
}
