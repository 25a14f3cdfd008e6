//! Wall-clock times of image and text towers, comparable with peers: ViT-B/16 with 32 images, and
//! CLIP ViT-B/32 with 64 texts of 77 tokens. The bench also prints the time of each kernel. The
//! outputs in F16 are checked against those in F32.

use std::time::Instant;

use serde_json::{Map, Value, json};
use tercet::{DType, Device, DeviceTensor, Executable, OutputSelection, Tensor, TensorType};
use tercet_ir::fill::InputFill;
use tercet_models::{DummyWeights, Encoder, VisionModel, VisionOutput, VisionSpec, Weights};

use crate::kernels::WARM_UP;
use crate::profile::show_all;
use crate::report::median;
use crate::{Bench, Result};

/// The number of timed runs per measurement.
const RUNS: usize = 100;
/// Tokens of each CLIP text.
const TOKENS: usize = 77;
/// Height and width of the images in pixels.
const SIDES: [usize; 2] = [224, 224];
/// Maximum magnitude of pixels.
const WIDTH: f64 = 0.02;
/// Maximum difference between F16 and F32 results, relative to the maximum result.
const APART: f64 = 0.03;

fn spec(json: Value) -> Result<VisionSpec> {
    let fields: Map<String, Value> = serde_json::from_value(json)?;
    Ok(VisionSpec::from_json(&fields)?)
}

fn layers(width: usize, quick: bool) -> Value {
    let (width, layers) = if quick { (128, 2) } else { (width, 12) };
    json!({
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width / 64, "intermediate_size": 4 * width,
    })
}

fn with(mut json: Value, more: Value) -> Value {
    if let (Value::Object(all), Value::Object(more)) = (&mut json, more) {
        all.extend(more);
    }
    json
}

fn vit(quick: bool) -> Result<VisionSpec> {
    let of_pictures = json!({
        "model_type": "vit", "image_size": SIDES[0], "patch_size": 16, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
    });
    spec(with(layers(768, quick), of_pictures))
}

fn clip(quick: bool) -> Result<VisionSpec> {
    let of_texts = json!({
        "hidden_act": "quick_gelu", "vocab_size": 49408, "max_position_embeddings": TOKENS, "eos_token_id": 49407,
    });
    let of_pictures =
        json!({ "image_size": SIDES[0], "patch_size": 32, "hidden_act": "quick_gelu" });
    spec(json!({
        "model_type": "clip", "projection_dim": 512, "text_config": with(layers(512, quick), of_texts),
        "vision_config": with(layers(768, quick), of_pictures),
    }))
}

type Compile = Box<dyn Fn(&Device) -> Result<Box<dyn Executable>>>;

/// One of the models in one dtype, compiled for its inputs.
struct Tower {
    name: &'static str,
    dtype: DType,
    compile: Compile,
    inputs: Vec<(&'static str, Tensor)>,
}

fn of_pictures(quick: bool, dtype: DType, weights: &Weights) -> Result<Tower> {
    let pictures = if quick { 2 } else { 32 };
    let model = VisionModel::build(&vit(quick)?, weights, VisionOutput::Features, SIDES, dtype)?;
    let ty = TensorType::new(DType::F32, &[pictures, 3, SIDES[0], SIDES[1]]);
    // The convolution weights are ones, so sums of larger pixels would exceed position embeddings
    // by too much for F16.
    let pixels = InputFill::Uniform(-WIDTH, WIDTH).tensor("pixels", ty);
    Ok(Tower {
        name: "vit-b/16",
        dtype,
        compile: Box::new(move |device| Ok(model.compile(device, pictures)?)),
        inputs: vec![("pixels", pixels)],
    })
}

fn of_texts(quick: bool, dtype: DType, weights: &Weights) -> Result<Tower> {
    let texts = if quick { 4 } else { 64 };
    let encoder = Encoder::from_text_tower(&clip(quick)?, weights, dtype)?;
    let ids: Vec<i32> = (0..texts * TOKENS)
        .map(|i| (i * 7919 % 49000) as i32)
        .collect();
    let places: Vec<i32> = (0..texts).map(|i| (TOKENS - 1 - i % 7) as i32).collect();
    Ok(Tower {
        name: "clip texts",
        dtype,
        compile: Box::new(move |device| Ok(encoder.compile(device, texts, TOKENS)?)),
        inputs: vec![
            ("ids", Tensor::from_slice(&[texts, TOKENS], &ids)?),
            ("place", Tensor::from_slice(&[texts, 1], &places)?),
        ],
    })
}

impl Tower {
    /// The model on a device, with its inputs on the device.
    fn on(&self, device: &Device) -> Result<(Box<dyn Executable>, Vec<DeviceTensor>)> {
        let mut exe = (self.compile)(device)?;
        let mut kept = Vec::new();
        for (name, tensor) in &self.inputs {
            let there = exe.upload(tensor)?;
            exe.bind(name, &there)?;
            kept.push(there);
        }
        Ok((exe, kept))
    }

    /// Measures the model and returns its results.
    fn measure(&self, b: &mut Bench) -> Result<Vec<f64>> {
        let items = self.inputs[0].1.shape()[0];
        let name = format!("{} {} b{items}", self.name, self.dtype);
        let (mut exe, _kept) = self.on(&b.device)?;
        let (seconds, results) = run(&mut *exe, RUNS)?;
        let rate = Some((items as f64 / seconds, "items/s"));
        b.report.row(&name, seconds, rate);
        let (mut exe, _kept) = self.on(&b.timed)?;
        run(&mut *exe, 1)?;
        show_all(b, &name, &exe.timings());
        Ok(results)
    }
}

/// The seconds per run with bound inputs after the warm-up, and the results.
fn run(exe: &mut dyn Executable, runs: usize) -> Result<(f64, Vec<f64>)> {
    let (mut outputs, mut times) = (Vec::new(), Vec::new());
    let began = Instant::now();
    while times.len() < runs {
        let start = Instant::now();
        exe.submit(&[], OutputSelection::All)?;
        exe.wait(&mut outputs)?;
        if began.elapsed() > WARM_UP {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    Ok((median(times), outputs[0].to_f64s()))
}

pub(crate) fn towers(b: &mut Bench) -> Result<()> {
    let weights = Weights::Dummy(DummyWeights::dense());
    let mut failed = Vec::new();
    for of in [of_pictures, of_texts] {
        let narrow = of(b.quick, DType::F16, &weights)?.measure(b)?;
        let wide = of(b.quick, DType::F32, &weights)?.measure(b)?;
        let greatest = wide.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        let apart = narrow.iter().zip(&wide).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, f64::max) / greatest;
        let said = format!("F16 differs from F32 by {apart:.1e} of the maximum result");
        let is_near = apart < APART;
        eprintln!("{said}");
        if !is_near {
            failed.push(said);
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join("; ").into()),
    }
}
