//! Traces of language models: one sequence, or the program of a server for several.

use std::time::Instant;

use serde_json::Value;
use tercet::Device;
use tercet_models::{
    BatchOptions, CacheFormat, ContextFit, ContextRequest, DecoderOptions, ModelFiles, Sampling,
    Sequence,
};

use super::super::generate::open_model;
use super::{SpanRecorder, TraceArgs, collect, print_kernels};
use crate::error::CliError;

/// Default prompt.
const PROMPT: &str = "Ownership is";
/// Maximum prompt tokens per run.
const CHUNK: usize = 512;

/// The model that is traced.
struct TracedModel<'a> {
    files: &'a ModelFiles,
    /// Its name in errors.
    what: &'a str,
    context: usize,
    cache: CacheFormat,
    prompt: Vec<u32>,
}

/// Records the runs of the prompt and of the tokens after it.
pub(super) fn record(
    args: &TraceArgs,
    device: &Device,
    recorder: &SpanRecorder,
    zero: Instant,
    events: &mut Vec<Value>,
) -> Result<(), CliError> {
    let (files, what) = open_model(args.model.as_deref())?;
    let what = what.as_str();
    let spec = files.decoder_spec().map_err(CliError::model(what))?;
    let precision = args.dtype.matmul_precision();
    let cache = CacheFormat::choose(&files.weights(), device, args.dtype.dtype(), precision);
    let request = ContextRequest {
        context: args.context,
        slots: args.parallel.map_or(1, usize::from),
        dtype: args.dtype.dtype(),
        cache: Some(cache),
        ..ContextRequest::default()
    };
    let fit = ContextFit::new(&files, &spec, device, &request).map_err(CliError::model(what))?;
    let tokenizer = files.tokenizer().map_err(CliError::model(what))?;
    let prompt = tokenizer.encode(args.prompt.as_deref().unwrap_or(PROMPT), true);
    let model = TracedModel {
        files: &files,
        what,
        context: fit.context,
        cache,
        prompt: prompt.map_err(CliError::model(what))?,
    };
    match args.parallel {
        Some(slots) => model.record_parallel(args, slots.into(), device, recorder, zero, events),
        None => model.record_one(args, device, recorder, zero, events),
    }
}

impl TracedModel<'_> {
    fn record_one(
        &self,
        args: &TraceArgs,
        device: &Device,
        recorder: &SpanRecorder,
        zero: Instant,
        events: &mut Vec<Value>,
    ) -> Result<(), CliError> {
        let decoder = self.files.decoder(|config| DecoderOptions {
            context: self.context,
            dtype: args.dtype.dtype(),
            cache: Some(self.cache),
            matmul_precision: args.dtype.matmul_precision(),
            sampling: Some(Sampling::GREEDY),
            chunk: CHUNK.min(self.context),
            ..DecoderOptions::new(config)
        });
        let decoder = decoder.map_err(CliError::model(self.what))?;
        let mut generator = {
            let _span = tracing::debug_span!("compile and load").entered();
            decoder
                .generator(device)
                .map_err(CliError::model(self.what))?
        };
        generator.skip_logits();
        collect(recorder, zero, &[], events);
        let mut steps = Vec::new();
        let mut next = self.prompt.clone();
        for _ in 0..=args.tokens {
            let step = {
                let _span = tracing::debug_span!("run").entered();
                let step = generator.forward(&next);
                step.map_err(CliError::model("cannot compute the next token"))?
                    .next
            };
            steps = generator.timings();
            collect(recorder, zero, &steps, events);
            match step {
                Some(token) if generator.position() < generator.context() => next = vec![token],
                Some(_) | None => break,
            }
        }
        print_kernels(&steps)
    }

    /// Records `slots` sequences in parallel, or fewer if the arguments say so.
    fn record_parallel(
        &self,
        args: &TraceArgs,
        slots: usize,
        device: &Device,
        recorder: &SpanRecorder,
        zero: Instant,
        events: &mut Vec<Value>,
    ) -> Result<(), CliError> {
        let sequences = args.sequences.map_or(slots, usize::from);
        if sequences > slots {
            let text = format!("--sequences {sequences} is more than --parallel {slots}");
            return Err(CliError::Usage(text));
        }
        let decoder = self.files.batch_decoder(|config| BatchOptions {
            context: self.context,
            chunk: BatchOptions::new(config, slots).chunk.min(self.context),
            dtype: args.dtype.dtype(),
            cache: Some(self.cache),
            matmul_precision: args.dtype.matmul_precision(),
            ..BatchOptions::new(config, slots)
        });
        let decoder = decoder.map_err(CliError::model(self.what))?;
        let mut generator = {
            let _span = tracing::debug_span!("compile and load").entered();
            decoder
                .generator(device)
                .map_err(CliError::model(self.what))?
        };
        collect(recorder, zero, &[], events);
        let failed = "cannot compute the next tokens";
        let tokens = args
            .tokens
            .min(self.context.saturating_sub(self.prompt.len()));
        for _ in 0..sequences {
            // A sequence also generates while the prompts of later ones are computed.
            let sequence = Sequence::new(self.prompt.clone(), tokens.saturating_add(1));
            generator.start(sequence).map_err(CliError::model(failed))?;
        }
        let mut steps = Vec::new();
        loop {
            let events_of_run = {
                let _span = tracing::debug_span!("run").entered();
                generator.step().map_err(CliError::model(failed))?
            };
            if events_of_run.is_empty() {
                break;
            }
            steps = generator.timings();
            collect(recorder, zero, &steps, events);
        }
        print_kernels(&steps)
    }
}
