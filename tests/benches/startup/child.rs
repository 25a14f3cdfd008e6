//! The measured process: from opening a file to the first token, with the time of each phase.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::json;
use tercet::{DType, Device, DeviceOptions};
use tercet_models::{DecoderOptions, ModelFiles};
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::Result;

/// Seconds per span name of the library's tracing spans; spans of parallel threads are summed.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<BTreeMap<&'static str, f64>>>);

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Instant::now());
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else {
            return;
        };
        if let Some(start) = span.extensions().get::<Instant>() {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *all.entry(span.name()).or_default() += start.elapsed().as_secs_f64();
        }
    }
}

/// The durations of the phases so far, and the end time of the last one.
struct Phases {
    seconds: BTreeMap<String, f64>,
    last: Instant,
}

impl Phases {
    fn end(&mut self, name: &str) {
        let at = self.seconds.len() + 1;
        let seconds = self.last.elapsed().as_secs_f64();
        self.seconds.insert(format!("{at} {name}"), seconds);
        self.last = Instant::now();
    }
}

pub(crate) fn run(
    start: Instant,
    model: &Path,
    device: &str,
    dtype: &str,
    caches: &Path,
) -> Result<()> {
    let spans = Spans::default();
    let subscriber = tracing_subscriber::registry().with(spans.clone());
    tracing::subscriber::set_global_default(subscriber)?;
    let mut phases = Phases {
        seconds: BTreeMap::new(),
        last: start,
    };
    let options = DeviceOptions {
        cache_dir: Some(caches.to_path_buf()),
        ..DeviceOptions::default()
    };
    let device = Device::open(device, &options)?;
    phases.end("open device");
    let files = ModelFiles::open(model)?;
    phases.end("open file");
    let dtype = match dtype {
        "f16" => DType::F16,
        _ => DType::F32,
    };
    let llama = files.decoder(|config| DecoderOptions {
        dtype,
        ..DecoderOptions::new(config)
    })?;
    phases.end("graph");
    let tokenizer = files.tokenizer()?;
    phases.end("tokenizer");
    let tokens = tokenizer.encode("ownership is", true)?;
    phases.end("tokens of the prompt");
    let mut generator = llama.generator(&device)?;
    phases.end("compile and load");
    generator.skip_logits();
    let next = generator.forward(&tokens)?.next;
    phases.end("first token");
    let spans = spans.0.lock().unwrap_or_else(PoisonError::into_inner);
    let said = json!({
        "token": next, "inside": start.elapsed().as_secs_f64(),
        "phases": phases.seconds, "spans": &*spans,
    });
    let mut out = std::io::stdout().lock();
    writeln!(out, "{said}")?;
    out.flush()?;
    Ok(())
}
