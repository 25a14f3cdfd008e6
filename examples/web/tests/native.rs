//! The functions of the page, run natively: asynchronously, on the CPU and on every device that
//! `wgpu` finds on this machine.

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};

use serde_json::Value as Json;
use tercet::{DType, Device, DeviceOptions};
use tercet_models::{Embedder, EncoderOutput, ModelFiles};
use web::{Failure, Language, Root, Roots, Sentences};

fn data(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data")).join(path)
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// The CPU, and the devices that `wgpu` finds.
fn devices() -> Vec<Device> {
    let gpu = block_on(Device::request_wgpu(&DeviceOptions::default()));
    std::iter::once(Device::cpu()).chain(gpu.ok()).collect()
}

#[test]
fn loops_and_states() -> Result<(), Failure> {
    for device in devices() {
        let mut roots = Roots::open(&device)?;
        let mut total = 0;
        for x in [2.0, 0.0, 1e6, -1.0, 0.25] {
            let Root {
                root, iterations, ..
            } = block_on(roots.of(x))?;
            total += iterations;
            assert!(
                (root - x.max(0.0).sqrt()).abs() <= 1e-5 * root,
                "{x}: {root}"
            );
            assert_eq!(iterations > 0, x > 0.0, "{x}");
        }
        assert_eq!(block_on(roots.of(1.0))?.total, total);
        let refused = block_on(roots.of(1e30))
            .err()
            .ok_or("too far for 40 iterations")?;
        assert!(tercet::one_line(&*refused).contains("40"), "{refused}");
        assert_eq!(
            block_on(roots.of(0.0))?.total,
            total,
            "a failed run leaves the state"
        );
    }
    Ok(())
}

#[test]
fn a_text() -> Result<(), Failure> {
    let reference: Json =
        serde_json::from_slice(&std::fs::read(data("tiny-rust-llama/reference.json"))?)?;
    let own = &reference["ownership"];
    let want = own["greedy"].as_array().ok_or("greedy tokens")?;
    let before = own["ids"].as_array().map_or(0, Vec::len);
    let want: Vec<u64> = want[before..].iter().filter_map(Json::as_u64).collect();
    let prompt = own["prompt"].as_str().ok_or("a prompt")?;
    let gguf = std::fs::read(data("tiny-rust-llama/tiny-rust-llama-q8_0.gguf"))?;
    for device in devices() {
        let mut language = Language::open(&gguf, &device)?;
        for _ in 0..2 {
            let mut text = String::new();
            let (tokens, _) = block_on(language.write(prompt, 24, &mut |piece| {
                text.push_str(piece);
                true
            }))?;
            let tokens: Vec<u64> = tokens.into_iter().map(u64::from).collect();
            assert_eq!(tokens, want[..24]);
            assert!(!text.is_empty());
        }
        let (tokens, _) = block_on(language.write(prompt, 24, &mut |_| false))?;
        assert_eq!(tokens.len(), 1, "the callback returned false");
    }
    Ok(())
}

/// Loading from memory gives the same results as loading from a folder, and asynchronous runs the
/// same as blocking ones.
#[test]
fn sentences() -> Result<(), Failure> {
    let texts = ["one", "two words", "and a few more of them"];
    let dir = data("encoders/sentence-a");
    let files = ModelFiles::open(&dir)?;
    let encoder = files.encoder(&EncoderOutput::mean_normalized(), DType::F32)?;
    let read = |name: &str| std::fs::read(dir.join(name));
    for device in devices() {
        let mut own = Embedder::new(&encoder, files.tokenizer()?, &device, Some(8), 12)?;
        own.set_truncating(true);
        let want = own.embed(&texts)?;
        let (config, tokenizer) = (read("config.json")?, read("tokenizer.json")?);
        let weights = read("model.safetensors")?;
        let mut sentences = Sentences::open(&config, &tokenizer, weights, &device)?;
        assert_eq!(block_on(sentences.embed(&texts))?, want);
    }
    Ok(())
}

#[test]
fn sentences_that_are_refused() -> Result<(), Failure> {
    let device = Device::cpu();
    let json = br#"{"model_type": "bert"}"#;
    for (config, weights) in [(&b"{"[..], vec![]), (json, vec![]), (json, vec![0; 64])] {
        assert!(Sentences::open(config, b"{}", weights, &device).is_err());
    }
    Ok(())
}
