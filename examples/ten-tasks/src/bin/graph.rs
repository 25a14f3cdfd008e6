//! Builds a graph, compiles it for up to 64 rows and runs it on two.

use std::error::Error;

use tercet::{CompileOptions, DType, Device, Dim, GraphBuilder, Tensor, Type};

fn main() -> Result<(), Box<dyn Error>> {
    let (b, rows) = (GraphBuilder::new(), Dim::sym("rows"));
    let x = b.input("x", Type::new(DType::F32, [rows, 3.into()]));
    b.output("y", (2.0 * x - 1.0).map(|g, x| g.softmax(x, 1)));
    let options = CompileOptions::new().bound("rows", 64);
    let mut exe = Device::auto()?.compile(&b.finish()?, &options)?;
    let x = Tensor::from_slice(&[2, 3], &[0f32, 0.0, 0.0, 1.0, 2.0, 3.0])?;
    let y = exe.run_named(&[("x", &x)])?.take("y")?;
    println!("{:.3?}", y.as_slice::<f32>()?);
    Ok(())
}
