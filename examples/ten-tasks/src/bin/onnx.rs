//! Runs an ONNX model.

use std::error::Error;
use std::path::Path;

use tercet::{Device, Tensor};
use tercet_models::onnx::{ImportOptions, Session};

fn main() -> Result<(), Box<dyn Error>> {
    let (path, device) = (Path::new("model.onnx"), Device::auto()?);
    let mut session = Session::open(path, &device, &ImportOptions::new())?;
    let x = Tensor::from_slice(&[2, 6], &[0.5f32; 12])?;
    for (name, output) in session.run(&[("x", &x)], None)? {
        let values = output.as_slice::<f32>()?;
        println!("{name}: {:?} {values:.3?}", output.shape());
    }
    Ok(())
}
