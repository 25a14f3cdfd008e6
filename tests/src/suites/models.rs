//! Tests of complete models against other implementations, on every executor of the build.
//!
//! There are two references. The demo model has logits and greedy tokens of another implementation
//! in F32 (`tests/data/tiny-rust-llama/reference.json`). all-MiniLM-L6-v2 has F64 results
//! (`tests/data/minilm`). MiniLM's weights come from `cargo xtask fetch minilm`. Without the
//! weights, MiniLM's tests are ignored with the reason, or fail if `TERCET_REQUIRE` is set.

mod ahead;

use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use serde_json::Value as Json;
use tercet::{DType, Device, one_line};
use tercet_models::{DecoderOptions, Embedder, EncoderOutput, Generator, ModelFiles, Tokenizer};

use crate::{SuiteTest, data, executors};

/// Maximum difference between logits of Tercet and of the other implementation, for F32 arithmetic
/// and Q8_0 weights.
const LOGITS_F32: f64 = 2e-3;
const LOGITS_Q8: f64 = 0.15;
/// Greedy tokens per prompt; [`long_cache`] generates more.
const GREEDY_TOKENS: usize = 32;
const GREEDY_PREFIX_Q8: usize = 24;
/// Maximum difference of logits between two summation orders of the same F32 model.
const LOGITS_REORDERED: f64 = 1e-3;
/// Maximum difference of logits between F32 and half-precision arithmetic of the same model.
const LOGITS_HALF: f64 = 0.5;
const EMBEDDING_ABS: f64 = 2e-5;
const EMBEDDING_COSINE: f64 = 0.99999;

type BoxError = Box<dyn std::error::Error>;
type CheckResult = Result<(), BoxError>;

fn json(path: &str) -> Result<Json, BoxError> {
    Ok(serde_json::from_slice(&std::fs::read(data(path))?)?)
}

fn fail<T>(message: String) -> Result<T, BoxError> {
    Err(message.into())
}

fn numbers(json: &Json) -> Vec<f64> {
    json.as_array()
        .map(|a| a.iter().filter_map(Json::as_f64).collect())
        .unwrap_or_default()
}

fn ids(json: &Json) -> Vec<u32> {
    numbers(json).into_iter().map(|x| x as u32).collect()
}

fn max_difference(a: &[f32], b: &[f64]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(&a, b)| (f64::from(a) - b).abs())
        .fold(0.0, f64::max)
}

/// A prompt with the results of the other implementation.
struct ReferencePrompt {
    name: &'static str,
    text: String,
    ids: Vec<u32>,
    logits: Vec<f64>,
    greedy: Vec<u32>,
    written: String,
}

const PROMPTS: [&str; 4] = ["ownership", "trait", "fn", "borrow"];

fn prompts() -> Result<Vec<ReferencePrompt>, BoxError> {
    let all = json("tiny-rust-llama/reference.json")?;
    let text = |j: &Json| j.as_str().unwrap_or_default().to_string();
    let of = |name: &'static str| {
        let p = &all[name];
        ReferencePrompt {
            name,
            text: text(&p["prompt"]),
            ids: ids(&p["ids"]),
            logits: numbers(&p["last_logits"]),
            greedy: ids(&p["greedy"]),
            written: text(&p["text"]),
        }
    };
    Ok(PROMPTS.into_iter().map(of).collect())
}

struct LoadedTestModel {
    generator: Generator,
    tokenizer: Tokenizer,
}

fn demo(
    file: &str,
    device: &Device,
    change: impl FnOnce(&mut DecoderOptions),
) -> Result<LoadedTestModel, BoxError> {
    let files = ModelFiles::open(data("tiny-rust-llama").join(file))?;
    let llama = files.decoder(|config| {
        let mut options = DecoderOptions::new(config);
        change(&mut options);
        options
    })?;
    Ok(LoadedTestModel {
        generator: llama.generator(device)?,
        tokenizer: files.tokenizer()?,
    })
}

impl LoadedTestModel {
    /// The logits after the prompt, and the greedy continuation of `n` tokens.
    fn greedy(&mut self, prompt: &[u32], n: usize) -> Result<(Vec<f32>, Vec<u32>), BoxError> {
        self.generator.reset();
        let step = self.generator.forward(prompt)?;
        let logits = step.logits.to_vec();
        let mut next = step.next;
        let mut tokens = prompt.to_vec();
        for i in 0..n {
            let token = next.ok_or("the graph does not sample")?;
            tokens.push(token);
            if i + 1 < n {
                next = self.generator.forward(&[token])?.next;
            }
        }
        Ok((logits, tokens))
    }
}

/// The subset of the references to run; all of them take minutes on a software driver.
#[derive(Clone, Copy, Debug)]
enum Coverage {
    /// A subset of the references that still runs every kernel.
    Some,
    /// All references.
    All,
}

impl Coverage {
    fn select<T>(self, all: Vec<T>, some: usize) -> Vec<T> {
        match self {
            Coverage::Some => all.into_iter().take(some).collect(),
            Coverage::All => all,
        }
    }
}

/// Tests F32 arithmetic: all greedy tokens, logits and text match the reference.
fn exact_model(file: &'static str, share: Coverage, device: &Device) -> CheckResult {
    let mut demo = demo(file, device, |_| ())?;
    for p in share.select(prompts()?, 2) {
        let encoded = demo.tokenizer.encode(&p.text, true)?;
        if encoded != p.ids {
            return fail(format!(
                "{}: found ids {encoded:?}, expected {:?}",
                p.name, p.ids
            ));
        }
        let (logits, tokens) = demo.greedy(&p.ids, GREEDY_TOKENS)?;
        let worst = max_difference(&logits, &p.logits);
        if logits.len() != p.logits.len() || worst > LOGITS_F32 {
            return fail(format!("{}: logits differ by {worst}", p.name));
        }
        if tokens[..] != p.greedy[..p.ids.len() + GREEDY_TOKENS] {
            let at = tokens.iter().zip(&p.greedy).position(|(a, b)| a != b);
            return fail(format!("{}: tokens differ from {at:?} on", p.name));
        }
        let written = demo.tokenizer.decode(&tokens)?;
        if written.len() <= p.text.len() || !p.written.starts_with(&written) {
            return fail(format!(
                "{}: found {written:?}, expected {:?}",
                p.name, p.written
            ));
        }
    }
    Ok(())
}

/// Tests Q8_0 weights: a prefix of the greedy tokens matches the F32 reference, or the logits are
/// close.
fn quantised_model(share: Coverage, device: &Device) -> CheckResult {
    let mut demo = demo("tiny-rust-llama-q8_0.gguf", device, |_| ())?;
    for p in share.select(prompts()?, 1) {
        let (logits, tokens) = demo.greedy(&p.ids, GREEDY_TOKENS)?;
        let worst = max_difference(&logits, &p.logits);
        let same = tokens
            .iter()
            .zip(&p.greedy)
            .take_while(|(a, b)| a == b)
            .count();
        let prefix = same - p.ids.len();
        if prefix < GREEDY_PREFIX_Q8 && worst > LOGITS_Q8 {
            return fail(format!(
                "{}: {prefix} tokens, logits differ by {worst}",
                p.name
            ));
        }
    }
    Ok(())
}

/// Tests the reference interpreter on the first prompt only, because it is slow. For F16 weights
/// its logits are compared with the other implementation, for quantized weights with those of
/// `device`.
fn reference_model(file: &'static str, device: &Device) -> CheckResult {
    let p = &prompts()?[0];
    let mut by_reference = demo(file, &Device::reference(), |_| ())?;
    let (logits, tokens) = by_reference.greedy(&p.ids, 4)?;
    let (want, greedy) = match file {
        "model.safetensors" => (p.logits.clone(), p.greedy.clone()),
        _ => {
            let (logits, greedy) = demo(file, device, |_| ())?.greedy(&p.ids, 4)?;
            (logits.into_iter().map(f64::from).collect(), greedy)
        }
    };
    let worst = max_difference(&logits, &want);
    if worst > LOGITS_F32 || tokens[..] != greedy[..tokens.len()] {
        return fail(format!("logits differ by {worst}, tokens {tokens:?}"));
    }
    Ok(())
}

/// Tests that the logits do not depend on how a prompt is split into chunks, including chunks of
/// one token.
fn parts_agree(device: &Device) -> CheckResult {
    let p = prompts()?.pop().ok_or("no prompts")?;
    let mut whole = demo("model.safetensors", device, |_| ())?;
    for (chunk, n) in [(1, 16), (2, 33), (7, 65), (64, p.greedy.len())] {
        let tokens = &p.greedy[..n];
        whole.generator.reset();
        let whole = whole.generator.forward(tokens)?.logits.iter();
        let whole: Vec<f64> = whole.map(|&x| x.into()).collect();
        let mut demo = demo("model.safetensors", device, |o| o.chunk = chunk)?;
        let worst = max_difference(demo.generator.forward(tokens)?.logits, &whole);
        if worst > LOGITS_REORDERED {
            return fail(format!("parts of {chunk}: logits differ by {worst}"));
        }
    }
    Ok(())
}

/// Tests that truncated tokens do not affect later results.
fn truncation_forgets(device: &Device) -> CheckResult {
    let [p, q] = &prompts()?[..2] else {
        return fail("two prompts".into());
    };
    let mut demo = demo("model.safetensors", device, |_| ())?;
    let want: Vec<f64> = demo
        .generator
        .forward(&p.greedy)?
        .logits
        .iter()
        .map(|&x| x.into())
        .collect();
    demo.generator.truncate(3);
    demo.generator.forward(&q.greedy)?;
    demo.generator.truncate(3);
    let worst = max_difference(demo.generator.forward(&p.greedy[3..])?.logits, &want);
    if worst > LOGITS_REORDERED {
        return fail(format!("logits differ by {worst}"));
    }
    Ok(())
}

/// Tests that a full context gives a typed error, and that the model works before and after the
/// error.
fn context_is_guarded(device: &Device) -> CheckResult {
    let p = &prompts()?[0];
    let mut demo = demo("model.safetensors", device, |o| o.context = 8)?;
    demo.generator.forward(&p.greedy[..6])?;
    for (tokens, part) in [
        (&p.greedy[6..9], "fit the context"),
        (&[], "no tokens"),
        (&[9999], "vocab"),
    ] {
        match demo.generator.forward(tokens) {
            Ok(_) => return fail(format!("{tokens:?} were accepted")),
            Err(e) if e.to_string().contains(part) => {}
            Err(e) => return fail(format!("{tokens:?}: {e}")),
        }
    }
    demo.generator.forward(&p.greedy[6..8])?;
    Ok(())
}

/// Tests that half-precision arithmetic changes the logits only slightly.
fn half_precision(device: &Device, dtype: DType) -> CheckResult {
    let mut demo = demo("model.safetensors", device, |o| o.dtype = dtype)?;
    for p in prompts()? {
        let (logits, _) = demo.greedy(&p.ids, 1)?;
        let worst = max_difference(&logits, &p.logits);
        if worst > LOGITS_HALF || worst == 0.0 {
            return fail(format!("{}: logits differ by {worst}", p.name));
        }
    }
    Ok(())
}

/// Tests that sampling is reproducible for a seed, and that another seed generates other text.
fn sampling_is_seeded(device: &Device) -> CheckResult {
    let p = &prompts()?[0];
    let write = |seed: u64| -> Result<Vec<u32>, BoxError> {
        let mut demo = demo("model.safetensors", device, |o| {
            let sampling = o.sampling.get_or_insert(tercet_models::Sampling::GREEDY);
            (sampling.temperature, sampling.top_k, sampling.seed) = (1.0, 50, seed);
        })?;
        Ok(demo.greedy(&p.ids, 12)?.1)
    };
    let (a, b, c) = (write(1)?, write(1)?, write(2)?);
    if a != b || a == c {
        return fail(format!("seed 1: {a:?} and {b:?}; seed 2: {c:?}"));
    }
    Ok(())
}

/// Tests that 200 decode steps over one cache, which read back only the chosen tokens, match a
/// single pass over all tokens.
fn long_cache(device: &Device) -> CheckResult {
    let p = &prompts()?[0];
    let mut stepwise = demo("model.safetensors", device, |_| ())?;
    stepwise.generator.skip_logits();
    let mut tokens = p.ids.clone();
    let mut next = stepwise.generator.forward(&p.ids)?.next;
    for _ in 0..200 {
        let token = next.ok_or("the graph does not sample")?;
        tokens.push(token);
        next = stepwise.generator.forward(&[token])?.next;
    }
    let by_steps = stepwise.generator.logits()?;
    let mut whole = demo("model.safetensors", device, |_| ())?;
    let at_once: Vec<f64> = (whole.generator.forward(&tokens)?.logits.iter())
        .map(|&x| x.into())
        .collect();
    let worst = max_difference(&by_steps, &at_once);
    match worst <= LOGITS_REORDERED {
        true => Ok(()),
        false => fail(format!("logits differ by {worst}")),
    }
}

/// The F64 values of a small `.npy` file.
fn npy_f64(path: &str) -> Result<Vec<f64>, BoxError> {
    let bytes = std::fs::read(data(path))?;
    let header = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let values = bytes[10 + header..].chunks_exact(8);
    Ok(values
        .map(|b| f64::from_le_bytes(b.try_into().unwrap_or_default()))
        .collect())
}

fn minilm(dir: &Path, share: Coverage, device: &Device) -> CheckResult {
    let files = ModelFiles::open(dir)?;
    let bert = files.encoder(&EncoderOutput::mean_normalized(), DType::F32)?;
    let reference = json("minilm/reference.json")?;
    let max_len = reference["max_seq_length"].as_u64().unwrap_or_default() as usize;
    let want = npy_f64("minilm/embeddings_f64.npy")?;
    let texts: Vec<&str> = reference["sentences"]
        .as_array()
        .map(|a| a.iter().filter_map(Json::as_str).collect())
        .unwrap_or_default();
    let width = want.len() / texts.len();
    // Single texts, and batches of mixed lengths, which use the mask. The last text is as long as
    // all others together, so it is batched with only three of them.
    let n = texts.len();
    let parts = match share {
        Coverage::Some => [(1, 0..4), (7, 4..n.min(18)), (3, n - 3..n)],
        Coverage::All => [(1, 0..n), (7, 0..n - 1), (3, n - 3..n)],
    };
    for (batch, part) in parts {
        let mut embedder = Embedder::new(&bert, files.tokenizer()?, device, Some(batch), max_len)?;
        // Truncate texts above the maximum length, because the reference truncates them too.
        embedder.set_truncating(true);
        let got = embedder.embed(&texts[part.clone()])?;
        let want = want[part.start * width..part.end * width].chunks(width);
        if got.len() != want.len() {
            return fail(format!("{} embeddings of {part:?}", got.len()));
        }
        for (i, (got, want)) in part.zip(got.iter().zip(want)) {
            let worst = max_difference(got, want);
            let dot: f64 = got.iter().zip(want).map(|(&a, b)| f64::from(a) * b).sum();
            let norm: f64 = got
                .iter()
                .map(|&a| f64::from(a).powi(2))
                .sum::<f64>()
                .sqrt();
            if worst > EMBEDDING_ABS || dot / norm < EMBEDDING_COSINE || got.len() != width {
                return fail(format!(
                    "batch {batch}, sentence {i}: {worst}, cosine {}",
                    dot / norm
                ));
            }
        }
    }
    Ok(())
}

fn minilm_tokens(dir: &Path) -> CheckResult {
    let tokenizer = ModelFiles::open(dir)?.tokenizer()?;
    let reference = json("minilm/reference.json")?;
    let pairs = reference["sentences"].as_array().into_iter().flatten();
    for (text, want) in pairs.zip(reference["token_ids"].as_array().into_iter().flatten()) {
        let batch = tokenizer.encode_batch(&[text.as_str().unwrap_or_default()], 256)?;
        if batch.ids != ids(want) {
            return fail(format!("{text}: found {:?}, expected {want}", batch.ids));
        }
    }
    Ok(())
}

/// A device test and the executors that it runs on; `None` means all.
type DeviceTest = (
    &'static str,
    Option<&'static str>,
    fn(&Device) -> CheckResult,
);

const LLAMA: &[DeviceTest] = &[
    ("llama/safetensors_f16", None, |d| {
        exact_model("model.safetensors", Coverage::Some, d)
    }),
    ("llama/safetensors_f16/more", None, |d| {
        exact_model("model.safetensors", Coverage::All, d)
    }),
    ("llama/gguf_f16", None, |d| {
        exact_model("tiny-rust-llama-f16.gguf", Coverage::Some, d)
    }),
    ("llama/gguf_f16/more", None, |d| {
        exact_model("tiny-rust-llama-f16.gguf", Coverage::All, d)
    }),
    ("llama/gguf_q8_0", None, |d| {
        quantised_model(Coverage::Some, d)
    }),
    ("llama/gguf_q8_0/more", None, |d| {
        quantised_model(Coverage::All, d)
    }),
    ("llama/parts_agree", None, parts_agree),
    ("llama/truncation_forgets", None, truncation_forgets),
    ("llama/context_is_guarded", None, context_is_guarded),
    ("llama/f16", None, |d| half_precision(d, DType::F16)),
    ("llama/bf16", None, |d| half_precision(d, DType::BF16)),
    ("llama/sampling_is_seeded", None, sampling_is_seeded),
    ("llama/long_cache", None, long_cache),
    ("llama/ahead", None, |d| ahead::ahead(Coverage::Some, d)),
    ("llama/ahead/more", None, |d| ahead::ahead(Coverage::All, d)),
    // The reference interpreter is slow, so only one executor is compared with it.
    ("llama/reference_f16", Some("cpu"), |d| {
        reference_model("model.safetensors", d)
    }),
    ("llama/reference_q8_0", Some("cpu"), |d| {
        reference_model("tiny-rust-llama-q8_0.gguf", d)
    }),
];

/// The environment variable with the folder of MiniLM's weights.
const MINILM_DIR: &str = "TERCET_MINILM_DIR";

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let dir = std::env::var_os(MINILM_DIR).map(PathBuf::from);
    let mut tests = Vec::new();
    for executor in executors() {
        for &(name, only, test) in LLAMA {
            if only.is_none_or(|only| only == executor.name) {
                tests.push(SuiteTest::on(executor, name.to_string(), on_one_line(test)));
            }
        }
        for (name, share) in [
            ("minilm/embeddings", Coverage::Some),
            ("minilm/embeddings/more", Coverage::All),
        ] {
            let dir = dir.clone();
            let embeddings = on_one_line(move |device| match &dir {
                Some(dir) => minilm(dir, share, device),
                None => fail(NO_WEIGHTS.into()),
            });
            tests.push(SuiteTest::on(executor, name.into(), embeddings));
        }
    }
    let with_weights = dir.clone();
    tests.push(SuiteTest::fallible("minilm/tokens", move || {
        minilm_tokens(&with_weights.ok_or(NO_WEIGHTS)?)
    }));
    let needs_weights = |test: &SuiteTest| test.name().starts_with("minilm/");
    // If `TERCET_REQUIRE` is set, missing weights are a failure.
    if dir.is_none() && std::env::var_os("TERCET_REQUIRE").is_none() {
        let tests = tests.into_iter().map(|test| match needs_weights(&test) {
            true => test.ignored(NO_WEIGHTS),
            false => test,
        });
        return tests.collect();
    }
    tests
}

const NO_WEIGHTS: &str = "no weights: run `cargo xtask fetch minilm` and set TERCET_MINILM_DIR";

/// A test that reports an error with all its causes.
fn on_one_line(
    test: impl FnOnce(&Device) -> Result<(), BoxError> + Send + 'static,
) -> impl FnOnce(&Device) -> Result<(), Failed> + Send + 'static {
    move |device| test(device).map_err(|e| one_line(&*e).into())
}
