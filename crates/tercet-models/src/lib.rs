//! Model files, tokenizers and model builders for Tercet.
//!
//! | module | content |
//! |---|---|
//! | [`gguf`] | GGUF files, versions 2 and 3 |
//! | [`safetensors`] | safetensors files |
//! | [`hf`] | Hugging Face folders: configuration, (sharded) weights, tokenizer |
//! | [`config`] | model configurations, with the same types for both formats |
//! | [`tokenizer`] | tokenizers, from `tokenizer.json` or the vocabulary of a GGUF file |
//! | [`answer`] | thoughts and calls of tools in answers of language models |
//! | [`adapter`] | low-rank adapters of PEFT and of llama.cpp; merging them into a model |
//! | [`image`] | PNG, JPEG, WebP and GIF decoding, and image preprocessing for vision models |
//! | [`training`] | training graphs of the model families |
//! | [`speech`] | speech recognition with Whisper |
//! | [`search`] | semantic search: an index of a folder's texts or images, and nearest-neighbour queries |
//! | [`save`] | writing of models and adapters |
//! | `splat` | 3-D Gaussian splatting scenes from `.ply` files (feature `splat`) |
//! | `onnx` | ONNX models as graphs and sessions (feature `onnx`) |
//! | [`constraint`] | generation constrained to a JSON schema, a regular expression or a grammar (feature `grammar`) |
//! | [`dataset`] | training data: texts, conversations, labelled texts, pairs, as batches |
//! | [`weight`] | tensors of files as tensors of the IR, without a copy |
//!
//! Every reader works on a [`MappedFile`] and accepts untrusted input. An invalid file gives a
//! typed error with the position in the file and the remedy. Detecting it takes memory and time in
//! proportion to the file's header. User input never causes a panic.
//!
//! [`LanguageModel`], [`Embedder`], [`Classifier`] and [`Transcriber`] open a model and run it with
//! one call each. The other types are the parts that they are made of.
//!
//! A Hugging Face folder is opened with [`HfFolder::open`], a GGUF file with [`Gguf::open`].
//! [`DecoderSpec::from_gguf`] and [`Tokenizer::from_gguf`] read the specification and the tokenizer
//! of the latter.

pub mod adapter;
mod classifier;
mod context_fit;
mod error;
mod family;
mod generate;
mod language_model;
mod model_path;
mod open;
pub mod save;
pub mod search;
pub mod speech;

pub use classifier::{Classification, Classifier};
pub use context_fit::{
    ContextBound, ContextFit, ContextRequest, MAX_CONTEXT, MAX_DEFAULT_CPU_CONTEXT,
    MIN_DEFAULT_CONTEXT,
};
pub use error::{Error, ModelPathError};
pub use family::ModelFamily;
pub use generate::{
    FinishReason, GenerateEvent, GenerateOptions, Generation, IncrementalDetokenizer, end_ids,
    generate, generate_async, generate_past_context,
};
pub use language_model::{
    LanguageModel, LanguageModelOptions, PromptText, PromptTokenizer, TextOptions, TextStream,
};
pub use model_path::{OllamaModel, OllamaParams};
pub use open::{
    DraftOptions, EmbeddingPrompt, EncoderOptions, ModelFiles, OpenModel, SimilarityHead,
};
pub use save::{SaveError, SaveOptions};
pub use speech::Transcriber;
pub use tercet_files::{
    FileError, FolderError, GgmlType, Gguf, GgufError, HfWeights, MappedFile, ModelWeight,
    SafeDtype, SafeTensorInfo, SafeTensors, SafeTensorsError, WeightError, gguf, gguf_weight, mmap,
    safetensors, safetensors_tensor, weight,
};
pub use tercet_networks::{
    Adapter, AdapterError, BatchDecoder, BatchEvent, BatchEventKind, BatchGenerator, BatchOptions,
    CacheFormat, ClassHead, ClassScore, ConfigError, DRY_BREAKERS, Decoder, DecoderDims,
    DecoderOptions, DecoderSpec, DenseModule, Draft, DraftCounts, DraftError, DryBreakers,
    DryOptions, DummyWeights, Embedder, Encoder, EncoderDims, EncoderOutput, EncoderSpec,
    EncoderTextReader, EncoderTokens, Entity, FeedForward, FfnActivation, Generator, GeneratorStep,
    HfError, HfFolder, Image, ImageClassifier, ImageEmbedder, ImageEncoder, ImageError,
    ImageLabels, ImageProcessor, ImagePromptReader, ImageTileProcessor, LowRank, MAX_DRAFT_TOKENS,
    MatmulPrecision, MirostatOptions, ModelError, ModelGraph, MoonshineModel, MoonshineSpec,
    PoolingMode, PositionEncoding, PrefixStore, PrefixStoreOptions, PrefixStoreStats, RopeLayout,
    SamplerStep, Sampling, SamplingOptions, ScaledAdapter, Scoring, SentenceFolder, SentenceModule,
    SentenceModules, SentencePrompts, Seq2Seq, Seq2SeqOptions, Seq2SeqSpec, Sequence, SequenceId,
    SourceEncoder, SpeechModel, SpeechSpec, SpeechTokens, TextClassifier, TokenLabel, TokenTypes,
    VisionFamily, VisionLanguageGraphs, VisionLanguageSpec, VisionModel, VisionOutput, VisionSpec,
    Weights, config, hf, image, training,
};
#[cfg(feature = "onnx")]
pub use tercet_onnx as onnx;
#[cfg(feature = "splat")]
pub use tercet_splat as splat;
pub use tercet_text::{
    StreamDecoder, TokenizedBatch, TokenizedRow, Tokenizer, TokenizerError, answer, constraint,
    dataset, tokenizer,
};

/// Private items that the tests of this crate use. They are no interface: they change without
/// notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::context_fit::{CONTEXT_STEP, MemoryUse};
    pub use crate::generate::StopHoldback;
    pub use crate::model_path::{ModelPlace, ModelStores};
    pub use crate::search::files::{Passage, passages};
    #[cfg(feature = "audio")]
    pub use crate::speech::audio::resample::Resampler;
    pub use crate::speech::moonshine::piece;
    pub use crate::speech::rules::{exp, log_sum, restrict};
    pub use crate::speech::window::{FallbackRng, compression, drawn, greatest};
}

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
