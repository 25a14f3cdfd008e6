//! Trains an image classifier from scratch: 1,797 handwritten digits of 8 x 8 pixels, convolutions
//! with batch normalization.

use std::path::{Path, PathBuf};

use tercet::ops::Window;
use tercet::train::EvalWeights;
use tercet::{BatchNorm, CompileOptions, DType, Device, Dim, Tensor, Type, Value};
use training::{Curve, Failed, Model, cross_entropy, device, trainer};

const SIDE: usize = 8;
const PIXELS: usize = SIDE * SIDE;
const BATCH: usize = 64;

/// Images and their labels.
struct Digits {
    pixels: Vec<f32>,
    labels: Vec<i32>,
}

impl Digits {
    /// Reads lines of 64 numbers from 0 to 16 and a label.
    fn read(path: &Path) -> Result<Digits, Failed> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            format!(
                "{}: {e}; download it with `cargo xtask fetch digits`",
                path.display()
            )
        })?;
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for line in text.lines() {
            let numbers: Result<Vec<f32>, _> = line.split(',').map(str::parse).collect();
            let numbers = numbers?;
            let [image @ .., label] = &numbers[..] else {
                continue;
            };
            pixels.extend(image.iter().map(|x| x / 16.0));
            labels.push(*label as i32);
        }
        Ok(Digits { pixels, labels })
    }

    /// Images and labels at these positions.
    fn part(&self, places: &[usize]) -> Result<[Tensor; 2], Failed> {
        let images = places
            .iter()
            .map(|at| &self.pixels[at * PIXELS..][..PIXELS]);
        let images: Vec<f32> = images.flatten().copied().collect();
        let labels: Vec<i32> = places.iter().map(|at| self.labels[*at]).collect();
        let shape = [places.len(), 1, SIDE, SIDE];
        let images = Tensor::from_slice(&shape, &images)?;
        Ok([images, Tensor::from_slice(&[labels.len()], &labels)?])
    }
}

/// A convolution, batch normalization and ReLU. The normalization uses batch statistics in
/// training, and running statistics otherwise.
fn layer(
    m: &mut Model,
    x: Value,
    name: &str,
    [inner, out, stride]: [usize; 3],
    is_training: bool,
) -> Result<Value, Failed> {
    let std = (2.0 / (9 * inner) as f64).sqrt();
    let w = m.weight(&format!("{name}.conv"), &[out, inner, 3, 3], std)?;
    let window = Window::new(2).with_stride(&[stride; 2]);
    let window = window.with_pads(&[1, 1], &[1, 1]);
    let y = m.graph.conv(x, w, None, window, 1)?;
    let gamma = m.filled(&format!("{name}.norm.weight"), &[out], 1.0)?;
    let beta = m.filled(&format!("{name}.norm.bias"), &[out], 0.0)?;
    let ty = Type::new(DType::F32, [out]);
    let (mean, variance) = (format!("{name}.mean"), format!("{name}.variance"));
    m.states.push((
        variance.clone(),
        Tensor::from_slice(&[out], &vec![1f32; out])?,
    ));
    let mean = m.graph.state(&mean, ty.clone())?;
    let variance = m.graph.state(&variance, ty)?;
    let options = BatchNorm::default();
    let y = match is_training {
        true => m
            .graph
            .batch_norm(y, [gamma, beta], [mean, variance], options)?,
        false => {
            let eps = options.eps;
            m.graph
                .batch_norm_inference(y, [gamma, beta, mean, variance], eps)?
        }
    };
    Ok(m.graph.relu(y)?)
}

/// The model, its loss, and the number of correct predictions in a batch.
fn model(rows: Dim, is_training: bool) -> Result<(Model, [Value; 2]), Failed> {
    let mut m = Model::default();
    let shape = [rows.clone(), 1.into(), SIDE.into(), SIDE.into()];
    let x = m.graph.input("images", Type::new(DType::F32, shape))?;
    let labels = m.graph.input("labels", Type::new(DType::I32, [rows]))?;
    let x = layer(&mut m, x, "1", [1, 16, 1], is_training)?;
    let x = layer(&mut m, x, "2", [16, 32, 2], is_training)?;
    let x = layer(&mut m, x, "3", [32, 32, 1], is_training)?;
    let x = m.graph.reduce_mean(x, &[2, 3], false)?;
    let w = m.weight("head.weight", &[32, 10], 0.1)?;
    let b = m.filled("head.bias", &[10], 0.0)?;
    let y = m.graph.linear(x, w, Some(b), None)?;
    let found = cross_entropy(&mut m.graph, y, labels)?;
    Ok((m, found))
}

/// Trains `steps` steps on all but the last images. Returns the loss curve and the accuracy on the
/// last images.
fn run(device: &Device, digits: &Digits, last: usize, steps: u64) -> Result<(Curve, f64), Failed> {
    let (m, [loss, _]) = model(BATCH.into(), true)?;
    let mut trainer = trainer(device, &m, loss, 1e-2, steps)?;
    let first = digits.labels.len() - last;
    let mut curve = Curve::default();
    for step in 0..steps {
        let stream = tercet::random::PhiloxStream {
            seed: 2,
            stream: 0,
            step,
        };
        let place = |i| (stream.unit(DType::F32, i as u64) * first as f64) as usize;
        let places: Vec<usize> = (0..BATCH).map(place).collect();
        let [images, labels] = digits.part(&places)?;
        let report = trainer.step(&[("images", &images), ("labels", &labels)])?;
        curve.push(report.loss, steps);
    }

    let (mut m, [_, right]) = model(Dim::sym("rows"), false)?;
    m.graph.output("right", right)?;
    let options = CompileOptions::new().bound("rows", last);
    let mut evaluator = trainer.evaluator(&m.graph, EvalWeights::Current, &options)?;
    let places: Vec<usize> = (first..first + last).collect();
    let [images, labels] = digits.part(&places)?;
    let inputs = [("images", &images), ("labels", &labels)];
    let right = trainer.evaluate(&mut evaluator, &inputs)?[0].to_f64s()[0];
    Ok((curve, right / last as f64))
}

fn main() -> Result<(), Failed> {
    let cache = std::env::var_os("TERCET_CACHE_DIR").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/tercet"));
    let fetched = cache.or_else(home).unwrap_or_default();
    let path = std::env::args_os().nth(2).map(PathBuf::from);
    let path = path.unwrap_or(fetched.join("digits/digits.csv"));
    let digits = Digits::read(&path)?;
    let (_, share) = run(&device()?, &digits, 297, 300)?;
    println!("\naccuracy on 297 held-out images: {:.1} %", 100.0 * share);
    Ok(())
}

/// Horizontal and vertical bars instead of digits.
#[test]
fn it_learns() {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for i in 0..80 {
        let (label, line) = (i % 2, i / 2 % SIDE);
        let is_on = |at: usize| [at / SIDE, at % SIDE][label] == line;
        pixels.extend((0..PIXELS).map(|at| f32::from(u8::from(is_on(at)))));
        labels.push(label as i32);
    }
    let digits = Digits { pixels, labels };
    let (curve, share) = run(&Device::cpu(), &digits, 16, 30).unwrap();
    assert!(curve.last(3) < 0.5 * curve.first(), "{curve:?}");
    assert!(share > 0.9, "{share}");
}
