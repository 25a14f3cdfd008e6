//! Tests of models with rounded matmul operands (`MatmulPrecision`). The results are close to those
//! without rounding. Activations outside the F16 range switch to a wider type.

use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use serde_json::Value as Json;
use tercet::{CompileOptions, DType, Device, Graph, Scheme, Tensor, TensorType, Type, one_line};
use tercet_ir::fill::{InputFill, random_blocks};
use tercet_models::{DecoderOptions, Generator, MatmulPrecision, ModelFiles};

use super::{BoxError, CONTEXT, distance, near, reference};
use crate::{SuiteTest, TestExecutor, data};

type ProductCheckFn = fn(&Device) -> Result<(), BoxError>;

/// Maximum error of logits, relative to their standard deviation, if rows are rounded to F16: about
/// twenty rounding errors of 2^-11 without much amplification.
const ROUNDED: f64 = 2e-2;

/// Families with different matmuls: fused projections, gates, parallel branches, soft caps, scales.
const MODELS: [&str; 6] = [
    "llama-a",
    "gemma2-a",
    "phi3-a",
    "gpt_neox-a",
    "granite-a",
    "qwen2-b",
];

fn generator(
    path: &Path,
    device: &Device,
    products: MatmulPrecision,
) -> Result<Generator, BoxError> {
    let decoder = ModelFiles::open(path)?.decoder(|spec| DecoderOptions {
        context: CONTEXT,
        chunk: CONTEXT,
        matmul_precision: products,
        ..DecoderOptions::new(spec)
    })?;
    Ok(decoder.generator(device)?)
}

/// Whether this device rounds activations to F16 if weights are 16-bit floats.
fn rounds(device: &Device) -> bool {
    device.fast_matmul_dtypes().contains(&DType::F16)
}

fn is_near(dir: &Path, device: &Device) -> Result<(), BoxError> {
    let want = reference(dir)?;
    let mut rounded = generator(dir, device, MatmulPrecision::Auto)?;
    let got = rounded.forward(&want.prompt)?.logits.to_vec();
    near("the prompt", &got, &want.logits, ROUNDED)?;
    let mut exact = generator(dir, device, MatmulPrecision::Full)?;
    let exact = exact.forward(&want.prompt)?.logits;
    match (rounds(device), got == exact) {
        (true, true) => return Err("no row was rounded".into()),
        (false, false) => {
            return Err("a device without cooperative matrices must give the same results".into());
        }
        (true, false) | (false, true) => {}
    }
    // Runs of single tokens are exact regardless of previous runs.
    let mut one = generator(dir, device, MatmulPrecision::Auto)?;
    let by_tokens = want.prompt.iter().try_fold(Vec::new(), |_, token| {
        Ok::<_, BoxError>(one.forward(&[*token])?.logits.to_vec())
    })?;
    near("token by token", &by_tokens, &want.logits, super::LOGITS)?;
    match rounded.fallback_message() {
        None => Ok(()),
        Some(note) => Err(format!("a model within the range reports: {note}").into()),
    }
}

/// Tests quantized weights with a long prompt, because only prompts with many rows dequantize the
/// weights.
fn packed_is_near(device: &Device) -> Result<(), BoxError> {
    const ROWS: u32 = 90;
    let file = data("tiny-rust-llama").join("tiny-rust-llama-q8_0.gguf");
    let mut logits = Vec::new();
    for products in [MatmulPrecision::Full, MatmulPrecision::Auto] {
        let mut generator = generator(&file, device, products)?;
        let prompt: Vec<u32> = (0..ROWS).map(|i| 7 * i % 300 + 3).collect();
        let got = generator.forward(&prompt)?.logits;
        logits.push(got.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
    }
    let [exact, rounded] = &logits[..] else {
        return Err("expected two results".into());
    };
    if device.fast_quant_matmul_dtypes().contains(&DType::F16) == (exact == rounded) {
        return Err("the rounding of rows differs from the device's report".into());
    }
    let rounded: Vec<f32> = rounded.iter().map(|x| *x as f32).collect();
    near("the prompt", &rounded, exact, ROUNDED)
}

/// Tests long sums with few columns, which use split-K; the F32 residual is added after the last
/// chunk.
fn residuals_of_parts(device: &Device) -> Result<(), BoxError> {
    const ROWS: usize = 130;
    for (scheme, [columns, len]) in [
        (Scheme::F16, [256, 2048]),
        (Scheme::F16, [1024, 4096]),
        (Scheme::Q8_0, [64, 1024]),
        (Scheme::Q8_0, [256, 2048]),
    ] {
        let stored = scheme.stored_len(len).ok_or("whole blocks")?;
        let ty = TensorType::new(scheme.storage(), &[columns, stored]);
        let bytes = columns * scheme.row_bytes(len).ok_or("whole blocks")?;
        let weights = match scheme {
            Scheme::F16 => InputFill::Uniform(-0.05, 0.05).tensor("weights", ty),
            scheme => Tensor::from_bytes(ty, &random_blocks("weights", scheme, bytes, 0.05))?,
        };
        let rows = TensorType::new(DType::F32, &[ROWS, len]);
        let rows = InputFill::Uniform(-1.0, 1.0).tensor("rows", rows);
        let added = TensorType::new(DType::F32, &[ROWS, columns]);
        let added = InputFill::Uniform(-1.0, 1.0).tensor("added", added);
        let mut results = Vec::new();
        for products in [None, Some(DType::F16)] {
            let mut g = Graph::new();
            let x = g.input("x", Type::new(DType::F32, [ROWS, len]))?;
            let r = g.input("r", Type::new(DType::F32, [ROWS, columns]))?;
            let w = g.param("w", Type::new(scheme.storage(), [columns, stored]))?;
            let product = g.dequant_matmul(x, w, scheme)?;
            let y = g.plus(r, product)?;
            g.output("y", y)?;
            let options = CompileOptions::new().with_matmul_precision(products);
            let mut exe = device.compile(&g, &options)?;
            exe.set_param("w", weights.clone())?;
            let y = exe.run(&[("x", &rows), ("r", &added)])?;
            results.push(y[0].to_f64s());
        }
        let [exact, rounded] = &results[..] else {
            return Err("expected two results".into());
        };
        let rounded: Vec<f32> = rounded.iter().map(|x| *x as f32).collect();
        let what = format!("{} [{columns}, {len}]", scheme.name());
        near(&what, &rounded, exact, ROUNDED)?;
    }
    Ok(())
}

/// A model folder with the first matrices of the feed-forward network scaled by 256, so that their
/// product exceeds F16.
fn beyond_the_range(dir: &Path) -> Result<PathBuf, BoxError> {
    let process = std::process::id();
    let to = std::env::temp_dir().join(format!("tercet-beyond-{process}"));
    std::fs::create_dir_all(&to)?;
    std::fs::copy(dir.join("config.json"), to.join("config.json"))?;
    let mut bytes = std::fs::read(dir.join("model.safetensors"))?;
    let (len, rest) = bytes.split_first_chunk_mut::<8>().ok_or("no header")?;
    let (header, values) = rest.split_at_mut(u64::from_le_bytes(*len) as usize);
    let header: Json = serde_json::from_slice(header)?;
    for (name, tensor) in header.as_object().ok_or("the header is not an object")? {
        if !name.contains("gate_proj") && !name.contains("up_proj") {
            continue;
        }
        let ends: Vec<usize> = (0..2)
            .filter_map(|i| Some(tensor["data_offsets"][i].as_u64()? as usize))
            .collect();
        for half in values[ends[0]..ends[1]].chunks_exact_mut(2) {
            let bits = u16::from_le_bytes([half[0], half[1]]);
            // Add 8 to the exponent of a normal number.
            let bits = if bits & 0x7C00 == 0 {
                bits
            } else {
                bits + (8 << 10)
            };
            half.copy_from_slice(&bits.to_le_bytes());
        }
    }
    std::fs::write(to.join("model.safetensors"), bytes)?;
    Ok(to)
}

fn moves(device: &Device) -> Result<(), BoxError> {
    let dir = data("decoders").join("llama-a");
    let prompt = reference(&dir)?.prompt;
    let dir = beyond_the_range(&dir)?;
    let mut exact = generator(&dir, device, MatmulPrecision::Full)?;
    let (first, rest) = prompt.split_at(2);
    exact.forward(first)?;
    let want: Vec<f64> = exact
        .forward(rest)?
        .logits
        .iter()
        .map(|x| f64::from(*x))
        .collect();
    let mut moved = generator(&dir, device, MatmulPrecision::Fixed(DType::F16))?;
    // When activations exceed the F16 range, the generator computes these cached tokens again.
    for token in first {
        moved.forward(&[*token])?;
    }
    moved.skip_logits();
    let next = moved.forward(rest)?.next;
    let got = moved.logits()?;
    let off = distance(&got, &want)?;
    let brain = device.fast_matmul_dtypes().contains(&DType::BF16);
    let most = if brain { 0.2 } else { super::REORDERED };
    if off.is_nan() || off > most {
        return Err(format!("logits differ by {off:.2e} of their standard deviation").into());
    }
    if !brain && next != exact_next(&want) {
        return Err("the next token differs".into());
    }
    match (rounds(device), moved.fallback_message()) {
        (true, None) => Err("the range was exceeded without a message".into()),
        (false, Some(note)) => Err(note.into()),
        (true, Some(note)) if !note.contains("leaves the range of f16") => Err(note.into()),
        (true, Some(_)) | (false, None) => Ok(()),
    }
}

/// The first token with the maximum logit.
fn exact_next(logits: &[f64]) -> Option<u32> {
    let best = logits.iter().copied().fold(f64::MIN, f64::max);
    let at = logits.iter().position(|x| *x == best)?;
    u32::try_from(at).ok()
}

/// The tests of an executor.
pub(super) fn tests(executor: &'static TestExecutor) -> Vec<SuiteTest> {
    let failed = |e: BoxError| Failed::from(one_line(&*e));
    let mut tests: Vec<SuiteTest> = MODELS
        .iter()
        .map(|name| {
            let dir = data("decoders").join(name);
            let test = move |device: &Device| is_near(&dir, device).map_err(failed);
            let name = format!("decoders/{name}/rounded");
            SuiteTest::variant_on(executor, name, "", test)
        })
        .collect();
    let own: [(&str, ProductCheckFn); 3] = [
        ("range/folder", moves),
        ("packed/rounded", packed_is_near),
        ("parts/rounded", residuals_of_parts),
    ];
    for (name, check) in own {
        let test = move |device: &Device| check(device).map_err(failed);
        tests.push(SuiteTest::variant_on(
            executor,
            format!("decoders/{name}"),
            "",
            test,
        ));
    }
    tests
}
