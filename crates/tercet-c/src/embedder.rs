//! Sentence encoders: embeddings of texts.

use std::ffi::{c_char, c_void};

use tercet::Tensor;
use tercet_models::{Embedder, EncoderOptions, ModelFamily};

use crate::boundary::{CallbackLock, Caller, OptionsStruct};
use crate::device::{TercetDevice, device_of};
use crate::error::{CallError, TercetError, TercetStatus};
use crate::handles::{self, HandleObject};
use crate::model::{TercetModelOptions, files_of};
use crate::tensor::{TensorObject, TercetTensor};

/// A compiled sentence encoder with its tokenizer.
pub struct TercetEmbedder {
    _opaque: (),
}

/// Options of an embedding call. All zeros, except `struct_size`, are the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TercetEmbedOptions {
    /// `sizeof(TercetEmbedOptions)`.
    pub struct_size: usize,
    /// If not 0, texts that are too long are truncated; otherwise they are an error.
    pub truncate: i32,
    /// Must be 0.
    pub reserved: i32,
}

// SAFETY: all fields are integers.
unsafe impl OptionsStruct for TercetEmbedOptions {}

/// Called on the thread of the call, after each batch, with the number of texts that are done. The call stops if it
/// returns false. It must not throw or jump out of the call, or call functions of the same handle.
pub type TercetProgressCallback =
    Option<unsafe extern "C" fn(done: usize, total: usize, user: *mut c_void) -> bool>;

/// The object of a `TercetEmbedder`.
struct EmbedderObject {
    embedder: CallbackLock<Embedder>,
    width: usize,
    max_tokens: usize,
}

impl HandleObject for EmbedderObject {
    const TYPE: &'static str = "TercetEmbedder";
    type Opaque = TercetEmbedder;
}

/// Opens a sentence encoder: a Hugging Face folder, a GGUF file, or the name of a model in a local cache. `options` may
/// be NULL; its `context` is the maximum number of tokens of a text.
///
/// Errors: those of `tercet_generator_open`.
///
/// Threads: calls of one embedder wait for each other. Free it with `tercet_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_embedder_open(
    device: *const TercetDevice,
    path: *const c_char,
    options: *const TercetModelOptions,
    embedder: *mut *mut TercetEmbedder,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let place = caller.out_handle(embedder, "embedder")?;
        let device = device_of(device)?;
        let path = caller.text(path, "path")?;
        let options = caller.options(options, "options")?;
        let (dtype, matmul_precision) = options.precision()?;
        let families = [
            ModelFamily::Encoder,
            ModelFamily::Decoder,
            ModelFamily::Vision,
        ];
        let files = files_of(path, &families, "embed texts")?;
        let options = EncoderOptions {
            dtype,
            matmul_precision,
            max_tokens: options.context(),
            ..EncoderOptions::default()
        };
        let embedder = files.embedder(&device, &options)?;
        place.create(EmbedderObject {
            width: embedder.width(),
            max_tokens: embedder.max_tokens(),
            embedder: CallbackLock::new(embedder),
        })
    })
}

/// Number of elements of an embedding; 0 if `embedder` is not a live embedder.
#[unsafe(no_mangle)]
pub extern "C" fn tercet_embedder_width(embedder: *const TercetEmbedder) -> usize {
    handles::get::<EmbedderObject>(embedder, "embedder").map_or(0, |object| object.width)
}

/// Maximum tokens of a text; 0 if `embedder` is not a live embedder.
#[unsafe(no_mangle)]
pub extern "C" fn tercet_embedder_max_tokens(embedder: *const TercetEmbedder) -> usize {
    handles::get::<EmbedderObject>(embedder, "embedder").map_or(0, |object| object.max_tokens)
}

/// Embeds texts: `*tensor` gets a new tensor of F32 and shape `[text_count, width]`, with rows of unit length if the
/// model normalizes. `options`, `callback` and `user` may be NULL. Free the tensor with `tercet_free`.
///
/// Errors: TERCET_STATUS_ARGUMENT for a text that is too long, TERCET_STATUS_CANCELLED if the callback returned false,
/// TERCET_STATUS_BUSY in a callback of the same embedder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_embed(
    embedder: *const TercetEmbedder,
    texts: *const *const c_char,
    text_count: usize,
    options: *const TercetEmbedOptions,
    callback: TercetProgressCallback,
    user: *mut c_void,
    tensor: *mut *mut TercetTensor,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let place = caller.out_handle(tensor, "tensor")?;
        let object = handles::get::<EmbedderObject>(embedder, "embedder")?;
        let texts = caller.texts(texts, text_count, "texts")?;
        let options = caller.options(options, "options")?;
        if options.reserved != 0 {
            return Err(CallError::argument(
                "`options->reserved` is not 0; initialize the whole structure",
            ));
        }
        let mut guard = object.embedder.lock("embedder")?;
        guard.value.set_truncating(options.truncate != 0);
        let mut wanted = true;
        let rows = guard.value.embed_with_progress(&texts, &mut |done| {
            wanted = wanted
                && callback.is_none_or(|function| {
                    // SAFETY: the caller passed the function for this argument.
                    unsafe { function(done, text_count, user) }
                });
            wanted
        });
        if !wanted {
            let reason = "the callback returned false; there are no embeddings";
            return Err(CallError::new(TercetStatus::Cancelled, reason));
        }
        let shape = [text_count, object.width];
        place.create(TensorObject(Tensor::from_slice(&shape, &rows?.concat())?))
    })
}
