//! Networks for Tercet: specifications of model families, and the builders of their graphs.
//!
//! | module | content |
//! |---|---|
//! | [`config`] | specifications: the structure of a model, read from `config.json` or GGUF metadata |
//! | [`hf`] | Hugging Face folders: configuration, weights and tokenizer |
//! | [`image`] | PNG, JPEG, WebP and GIF decoding, and image preprocessing for vision models |
//! | [`low_rank`] | low-rank adapters of PEFT and of llama.cpp |
//! | [`training`] | training graphs of the model families |
//!
//! A builder such as [`Decoder`] turns a specification and [`Weights`] into a [`ModelGraph`].
//! [`Generator`] and [`BatchGenerator`] run the graph of a decoder.

mod builder;
pub mod config;
pub mod hf;
pub mod image;
pub mod low_rank;
pub mod maybe_async;
mod weights;

pub use builder::training;
pub use builder::{
    BatchDecoder, BatchEvent, BatchEventKind, BatchGenerator, BatchOptions, CacheFormat,
    ClassScore, DRY_BREAKERS, Decoder, DecoderOptions, DenseModule, Draft, DraftCounts, DraftError,
    DryBreakers, DryOptions, DummyWeights, Embedder, Encoder, EncoderOutput, EncoderTextReader,
    EncoderTokens, Entity, FinishReason, Generator, GeneratorStep, ImageClassifier, ImageEmbedder,
    ImageEncoder, ImageLabels, ImagePromptReader, MAX_DRAFT_TOKENS, MatmulPrecision,
    MirostatOptions, ModelError, ModelGraph, MoonshineModel, PoolingMode, PrefixStore,
    PrefixStoreOptions, PrefixStoreStats, SamplerStep, Sampling, SamplingOptions, ScaledAdapter,
    Scoring, SentenceModule, SentenceModules, Seq2Seq, Seq2SeqOptions, Sequence, SequenceId,
    SourceEncoder, SpeechModel, TextClassifier, TokenLabel, VisionLanguageGraphs, VisionModel,
    VisionOutput, Weights, hand_over,
};
pub use config::{
    ConfigError, DecoderDims, DecoderSpec, EncoderDims, EncoderSpec, FeedForward, FfnActivation,
    MoonshineSpec, PositionEncoding, RopeLayout, Seq2SeqSpec, SpeechSpec, SpeechTokens, TokenTypes,
    VisionFamily, VisionLanguageSpec, VisionSpec,
};
pub use hf::{ClassHead, HfError, HfFolder, SentenceFolder, SentencePrompts};
pub use image::{Image, ImageError, ImageProcessor, ImageTileProcessor};
pub use low_rank::{Adapter, AdapterError, LowRank};

/// Private items that the tests of this crate use. They are no interface: they change without
/// notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::builder::encoder::embedder::{overlap_start, piece_boundary};
    pub use crate::builder::encoder::entities::joined;
    pub use crate::builder::encoder::relative::{both_ways, bucket};
    pub use crate::builder::encoder::runner::{EncoderBatchBounds, group};
    pub use crate::builder::engine::drafts::repeated;
    pub use crate::builder::engine::sequence::{CacheSlot, PrefixCheckpoint};
    pub use crate::builder::parts;
    pub use crate::builder::sampling::chain::SamplingState;
    pub use crate::builder::token_sampler::{leader, spread};
    pub use crate::builder::trainable::uniform;
    pub use crate::builder::vision_language::prompt::{expand_image_tokens, places, tokens_around};
    pub use crate::builder::weight_transforms::{BLOCK, CODES, part_pairs, repack, transpose_rows};
    pub use crate::config::family_names::{MAX_NEAR, similarity};
    pub use crate::config::known_keys::{ConfigClass, KEYS, is_base, is_same, scaling_reads};
    pub use crate::image::orientation::{Orientation, SHORT, TAG, tag};
}
