//! Model files and tokenizers for Tercet.
//!
//! | module | reads |
//! |---|---|
//! | [`gguf`] | GGUF files, versions 2 and 3 |
//! | [`safetensors`] | safetensors files |
//! | [`hf`] | Hugging Face folders: configuration, (sharded) weights, tokenizer |
//! | [`config`] | model configurations, the same types from either source |
//! | [`tokenizer`] | tokenizers, from `tokenizer.json` or a GGUF file's own vocabulary |
//! | [`adapter`] | low-rank adapters of PEFT and of llama.cpp; merging them into a model |
//! | [`picture`] | PNG and JPEG files, and how models of pictures read them |
//! | [`training`] | training graphs of the model families |
//! | [`speech`] | speech to text with Whisper |
//! | [`search`] | an index of a folder's texts or pictures, and the nearest to a query |
//! | [`save`] | writes models and adapters |
//! | `splat` | scenes of 3-D Gaussians from `.ply` files (feature `splat`) |
//! | `onnx` | ONNX models as graphs and sessions (feature `onnx`) |
//! | [`constraint`] | texts that are JSON of a schema, match an expression or are of a grammar (feature `grammar`) |
//! | [`dataset`] | training data: texts, conversations, labelled texts, pairs, as batches |
//! | [`weight`] | tensors of files as tensors of the IR, without a copy |
//!
//! Every reader works on a [`MappedFile`] and survives any input: what is wrong is a typed error
//! that names the place in the file and the remedy, found in memory and time in proportion to
//! the file's header. Nothing here panics on user input.
//!
//! A Hugging Face folder is opened with [`HfFolder::open`], a GGUF file with [`Gguf::open`];
//! [`DecoderSpec::from_gguf`] and [`Tokenizer::from_gguf`] take the second one further.

pub mod adapter;
mod builder;
pub mod config;
pub mod constraint;
pub mod dataset;
mod error;
pub mod gguf;
pub mod hf;
pub mod mmap;
mod open;
pub mod picture;
pub mod safetensors;
pub mod save;
pub mod search;
pub mod speech;
#[cfg(feature = "splat")]
pub mod splat;
pub mod tokenizer;
mod waits;
pub mod weight;
mod writing;

pub use adapter::{Adapter, AdapterError, LowRank};
pub use builder::training;
pub use builder::{
    BatchDecoder, BatchEvent, BatchGenerator, BatchOptions, CacheFormat, Classifier, Decoder,
    DecoderOptions, DenseModule, Draft, DraftCounts, DraftError, DraftedGenerator, Embedder,
    Encoder, EncoderOutput, Entity, Generator, Happened, Label, MOST_DRAFTED, MadeUp, Model,
    ModelError, Moonshine, PictureClassifier, PictureEncoder, PictureLabels, PictureReader,
    PoolingMode, Products, Sampling, SamplingOptions, ScaledAdapter, Scoring, SentenceModule,
    SentenceModules, Sequence, SequenceId, SourceReader, Speech, Step, TextToText,
    TextToTextOptions, TokenLabel, VisionLanguage, VisionModel, VisionOutput, Weights,
};
pub use config::{
    Activation, ConfigError, DecoderDims, DecoderSpec, EncoderDims, EncoderSpec, FeedForward,
    MoonshineSpec, Positions, RopeLayout, SpeechSpec, SpeechTokens, TextToTextSpec, TokenTypes,
    VisionFamily, VisionLanguageSpec, VisionSpec,
};
pub use error::Error;
pub use gguf::{GgmlType, Gguf, GgufError};
pub use hf::{ClassHead, HfError, HfFolder, HfWeights, Prompts, SentenceFolder};
pub use mmap::{FileError, MappedFile};
pub use open::{DraftOptions, EncoderOptions, Family, Likeness, ModelFiles, Prompt};
pub use picture::{Picture, PictureError, PictureProcessor, TileProcessor};
pub use safetensors::{SafeDtype, SafeTensorInfo, SafeTensors, SafeTensorsError};
pub use save::{SaveError, SaveOptions};
#[cfg(feature = "onnx")]
pub use tercet_onnx as onnx;
pub use tokenizer::{Batch, Row, StreamDecoder, Tokenizer, TokenizerError};
pub use weight::{Weight, WeightError, gguf_weight, safetensors_tensor};
pub use writing::{
    Event, Finish, TextPieces, WriteOptions, Written, turn_ends, write, write_async,
};
