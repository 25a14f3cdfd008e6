//! Wall-clock times of complete models, from inputs to results.

use std::time::Instant;

use tercet::{DType, Device, DeviceOptions, Executable, OutputSelection, Scheme, Tensor};
use tercet_models::{
    Decoder, DecoderDims, DecoderOptions, DecoderSpec, DummyWeights, Encoder, EncoderDims,
    EncoderOutput, EncoderSpec, MatmulPrecision, Weights,
};

use crate::kernels::WARM_UP;
use crate::report::median;
use crate::{Bench, Result};

fn encoder(hidden: usize, layers: usize, heads: usize, ffn: usize) -> EncoderSpec {
    EncoderSpec::bert(EncoderDims {
        hidden,
        layers,
        heads,
        ffn,
        vocab: 30522,
        context: 512,
    })
}

pub(crate) fn bert_base(b: &Bench) -> EncoderSpec {
    match b.quick {
        true => encoder(64, 2, 2, 128),
        false => encoder(768, 12, 12, 3072),
    }
}

pub(crate) fn build(config: &EncoderSpec, dtype: DType) -> Result<Encoder> {
    let weights = Weights::Dummy(DummyWeights::dense());
    Ok(Encoder::build(
        config,
        &weights,
        &EncoderOutput::mean_normalized(),
        dtype,
    )?)
}

pub(crate) struct Batch {
    ids: Tensor,
    type_ids: Tensor,
    mask: Tensor,
}

impl Batch {
    pub(crate) fn new(batch: usize, seq: usize) -> Result<Batch> {
        let n = batch * seq;
        let shape = [batch, seq];
        let ids: Vec<i32> = (0..n).map(|i| 1000 + (i * 7919 % 20000) as i32).collect();
        Ok(Batch {
            ids: Tensor::from_slice(&shape, &ids)?,
            type_ids: Tensor::from_slice(&shape, &vec![0i32; n])?,
            mask: Tensor::from_bools(&shape, &vec![true; n])?,
        })
    }

    pub(crate) fn inputs(&self) -> [(&str, &Tensor); 3] {
        let Batch {
            ids,
            type_ids,
            mask,
        } = self;
        [("ids", ids), ("type_ids", type_ids), ("mask", mask)]
    }
}

fn wall(exe: &mut dyn Executable, batch: &Batch, runs: usize) -> Result<f64> {
    let mut outputs = Vec::new();
    let mut times = Vec::new();
    let began = Instant::now();
    while times.len() < runs {
        let start = Instant::now();
        exe.run_into(&batch.inputs(), &mut outputs)?;
        if began.elapsed() > WARM_UP {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    Ok(median(times))
}

pub(crate) fn bert(b: &mut Bench) -> Result<()> {
    let models = [
        ("bert-base", bert_base(b)),
        ("minilm", encoder(384, 6, 12, 1536)),
    ];
    for (name, config) in models {
        for dtype in [DType::F16, DType::F32] {
            let model = build(&config, dtype)?;
            for (batch, seq) in [(1, 128), (32, 128)] {
                // Compile for this size, because kernel selection depends on bounds.
                let mut exe = model.compile(&b.device, batch, seq)?;
                let seconds = wall(&mut *exe, &Batch::new(batch, seq)?, 20)?;
                let rate = (batch * seq) as f64 / seconds;
                let name = format!("{name} {dtype} b{batch} s{seq}");
                b.report.row(&name, seconds, Some((rate, "tokens/s")));
            }
        }
        if b.quick {
            break;
        }
    }
    Ok(())
}

/// The host time of a run whose sequence length differs from the previous one.
pub(crate) fn resize(b: &mut Bench) -> Result<()> {
    let model = build(&bert_base(b), DType::F32)?;
    let mut exe = model.compile(&b.device, 4, 128)?;
    let batches: Vec<Batch> = (0..30)
        .map(|i| Batch::new(1 + i % 4, 16 + i * 3))
        .collect::<Result<_>>()?;
    let mut outputs = Vec::new();
    let mut host = |exe: &mut dyn Executable, batch: &Batch| -> Result<f64> {
        let start = Instant::now();
        exe.submit(&batch.inputs(), OutputSelection::All)?;
        let host = start.elapsed().as_secs_f64();
        exe.wait(&mut outputs)?;
        Ok(host)
    };
    let (mut same, mut new) = (Vec::new(), Vec::new());
    for batch in &batches {
        new.push(host(&mut *exe, batch)?);
        same.push(host(&mut *exe, batch)?);
    }
    b.report
        .row("bert-base f32, host time, same size", median(same), None);
    b.report
        .row("bert-base f32, host time, new size", median(new), None);
    Ok(())
}

/// The time from a graph to the first result, without and with an existing pipeline cache.
pub(crate) fn first_run(b: &mut Bench) -> Result<()> {
    let model = build(&bert_base(b), DType::F16)?;
    let dir = std::env::temp_dir().join(format!("tercet-bench-{}", std::process::id()));
    let batch = Batch::new(1, 128)?;
    for what in ["cold", "warm"] {
        let start = Instant::now();
        let options = DeviceOptions {
            cache_dir: Some(dir.clone()),
            ..DeviceOptions::default()
        };
        let device = Device::open(&b.name, &options)?;
        let opened = start.elapsed().as_secs_f64();
        let mut exe = model.compile(&device, 1, 128)?;
        exe.run(&batch.inputs())?;
        let seconds = start.elapsed().as_secs_f64();
        drop(exe);
        drop(device);
        b.report.row(
            &format!("bert-base f16 first run, {what} cache"),
            seconds,
            None,
        );
        b.report
            .row(&format!("  of it opening the device, {what}"), opened, None);
    }
    std::fs::remove_dir_all(&dir).ok();
    Ok(())
}

pub(crate) fn llama_1b(b: &Bench) -> DecoderSpec {
    let (hidden, layers, ffn, vocab) = match b.quick {
        true => (256, 2, 512, 512),
        false => (2048, 22, 5632, 32000),
    };
    DecoderSpec::llama(DecoderDims {
        hidden,
        layers,
        heads: hidden / 64,
        kv_heads: (hidden / 512).max(1),
        head_dim: 64,
        ffn,
        vocab,
        context: 2048,
    })
}

/// A model of 8 billion parameters with a context of 2048 tokens.
pub(crate) fn llama_8b(b: &Bench) -> DecoderSpec {
    if b.quick {
        return llama_1b(b);
    }
    DecoderSpec::llama(DecoderDims {
        hidden: 4096,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        ffn: 14336,
        vocab: 128_256,
        context: 2048,
    })
}

/// Prefill of 512 tokens, then decode, in the common storage formats and dtypes.
pub(crate) fn decode(b: &mut Bench) -> Result<()> {
    let config = llama_1b(b);
    for (scheme, dtype, products) in [
        (Scheme::F16, DType::F32, MatmulPrecision::Full),
        (Scheme::F16, DType::F32, MatmulPrecision::Auto),
        (Scheme::Q8_0, DType::F32, MatmulPrecision::Full),
        (Scheme::Q8_0, DType::F32, MatmulPrecision::Auto),
        (Scheme::Q4K, DType::F32, MatmulPrecision::Full),
        (Scheme::Q4K, DType::F32, MatmulPrecision::Auto),
        (Scheme::Q4K, DType::F16, MatmulPrecision::Full),
    ] {
        generate(b, "llama 1.1B", &config, (scheme, dtype, products))?;
    }
    Ok(())
}

/// Measures the same as [`decode`], for a model with ten times the weights.
pub(crate) fn large(b: &mut Bench) -> Result<()> {
    let config = llama_8b(b);
    for (dtype, products) in [
        (DType::F32, MatmulPrecision::Full),
        (DType::F32, MatmulPrecision::Auto),
        (DType::F16, MatmulPrecision::Full),
    ] {
        generate(b, "llama 8B", &config, (Scheme::Q4K, dtype, products))?;
    }
    Ok(())
}

fn generate(
    b: &mut Bench,
    model: &str,
    config: &DecoderSpec,
    (scheme, dtype, products): (Scheme, DType, MatmulPrecision),
) -> Result<()> {
    let name = match (dtype, products) {
        (DType::F32, MatmulPrecision::Full) => format!("{model} {}", scheme.name()),
        (DType::F32, _) => format!("{model} {} auto", scheme.name()),
        _ => format!("{model} {} in {dtype}", scheme.name()),
    };
    let weights = Weights::Dummy(DummyWeights::packed(scheme));
    let options = DecoderOptions {
        dtype,
        matmul_precision: products,
        ..DecoderOptions::new(config)
    };
    let model = Decoder::build(config, &weights, options)?;
    let start = Instant::now();
    let mut generator = model.generator(&b.device)?;
    generator.skip_logits();
    let prompt: Vec<u32> = (0..512).map(|i| i * 31 % 500).collect();
    generator.forward(&prompt[..1])?;
    let row = format!("{name} load and first run");
    b.report.row(&row, start.elapsed().as_secs_f64(), None);
    let mut times = Vec::new();
    let began = Instant::now();
    while times.len() < 8 {
        generator.truncate(0);
        let start = Instant::now();
        generator.forward(&prompt)?;
        // The device lowered its clock while the weights were loaded.
        if began.elapsed() > WARM_UP {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    if let Some(note) = generator.fallback_message() {
        eprintln!("{name}: {note}");
    }
    let seconds = median(times);
    let rate = Some((512.0 / seconds, "tokens/s"));
    b.report.row(&format!("{name} prefill 512"), seconds, rate);
    generator.truncate(16);
    let mut times = Vec::new();
    for i in 0..100u32 {
        let start = Instant::now();
        generator.forward(&[i + 5])?;
        times.push(start.elapsed().as_secs_f64());
    }
    let seconds = median(times);
    let rate = Some((1.0 / seconds, "tokens/s"));
    b.report.row(&format!("{name} decode"), seconds, rate);
    Ok(())
}
