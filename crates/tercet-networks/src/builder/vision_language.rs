//! Vision-language models: the graphs of any [`VisionLanguageSpec`].
//!
//! There are two graphs. The vision tower runs once for the tiles of an image. The tower's output
//! rows replace token embeddings in the decoder, a [`Decoder`] with
//! [`DecoderOptions::max_image_rows`].
//!
//! | graph | inputs | outputs |
//! |---|---|---|
//! | tower | `pixels` F32 `[b, 3, side, side]`, normalized | `rows` F32 `[b, rows of a tile, hidden of the decoder]` |
//! | decoder | those of [`Decoder`], and `max_image_rows` F32 `[p, hidden]` | those of [`Decoder`] |
//!
//! Token id `vocab + i` refers to row `i` of `max_image_rows`. Prompts with images are therefore ordinary
//! token sequences: chunking, prefix caching and truncation work as for text.

mod image_encoder;
pub(crate) mod prompt;

use tercet::{CompileOptions, DType, Device, Dim, Type, Value};

use super::batch::BatchGenerator;
use super::decoder::{BatchDecoder, BatchOptions, Decoder, DecoderOptions};
use super::encoder::encode_images;
use super::generator::Generator;
use super::{ModelBuilder, ModelError, ModelGraph, Weights};
use crate::config::VisionLanguageSpec;
use crate::config::vision_language::CONNECTOR;
use crate::image::ImageTileProcessor;
pub use image_encoder::{ImageEncoder, ImagePromptReader};

/// Image tiles per run of the tower.
const BATCH: usize = 4;

/// A vision-language model: graphs and parameters. `D` is the decoder: [`Decoder`], or
/// [`BatchDecoder`] with one slot.
///
/// ```no_run
/// use tercet::Device;
/// use tercet_models::{DecoderOptions, ModelFiles};
/// let files = ModelFiles::open("smolvlm")?;
/// let model = files.vision_language(|spec| DecoderOptions::new(&spec.decoder))?;
/// assert_eq!(model.processor.tile(), model.spec.side());
/// let (images, generator) = model.compile(&Device::cpu())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct VisionLanguageGraphs<D = Decoder> {
    /// Graph from image tiles to embedding rows.
    pub tower: ModelGraph,
    /// Graph from tokens and embedding rows to logits.
    pub decoder: D,
    /// Splits images into tiles.
    pub processor: ImageTileProcessor,
    /// Configuration that the graphs were built from.
    pub spec: VisionLanguageSpec,
}

impl VisionLanguageGraphs {
    /// Builds the graphs from the weights of a folder. The maximum number of image rows equals the
    /// context length.
    ///
    /// # Errors
    /// [`ModelError`] if a weight is missing or has an unexpected shape or format, or if an option
    /// is out of range.
    pub fn build(
        spec: &VisionLanguageSpec,
        processor: ImageTileProcessor,
        weights: &Weights,
        options: DecoderOptions,
    ) -> Result<VisionLanguageGraphs, ModelError> {
        let options = DecoderOptions {
            max_image_rows: options.context,
            ..options
        };
        Ok(VisionLanguageGraphs {
            tower: tower(spec, weights, options.dtype)?,
            decoder: Decoder::build(&spec.decoder, weights, options)?,
            processor,
            spec: spec.clone(),
        })
    }

    /// Compiles both graphs for a device.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn compile(&self, device: &Device) -> Result<(ImageEncoder, Generator), ModelError> {
        Ok((self.encoder(device)?, self.decoder.generator(device)?))
    }
}

impl VisionLanguageGraphs<BatchDecoder> {
    /// Like [`VisionLanguageGraphs::build`], with a decoder of one slot.
    ///
    /// # Errors
    /// The errors of [`VisionLanguageGraphs::build`]; [`ModelError::Unsupported`] for several slots.
    pub fn build_batch(
        spec: &VisionLanguageSpec,
        processor: ImageTileProcessor,
        weights: &Weights,
        options: BatchOptions,
    ) -> Result<VisionLanguageGraphs<BatchDecoder>, ModelError> {
        let options = BatchOptions {
            max_image_rows: options.context,
            ..options
        };
        Ok(VisionLanguageGraphs {
            tower: tower(spec, weights, options.dtype)?,
            decoder: BatchDecoder::build(&spec.decoder, weights, options)?,
            processor,
            spec: spec.clone(),
        })
    }

    /// Compiles both graphs for a device.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn compile_batch(
        &self,
        device: &Device,
    ) -> Result<(ImageEncoder, BatchGenerator), ModelError> {
        Ok((self.encoder(device)?, self.decoder.generator(device)?))
    }
}

impl<D> VisionLanguageGraphs<D> {
    fn encoder(&self, device: &Device) -> Result<ImageEncoder, ModelError> {
        let options = CompileOptions::new().bound("b", BATCH);
        let exe = self.tower.compile(device, &options)?;
        Ok(ImageEncoder::new(exe, &self.spec, self.processor.clone()))
    }
}

/// Vision tower and connector, with arithmetic in `dtype`.
fn tower(
    spec: &VisionLanguageSpec,
    weights: &Weights,
    dtype: DType,
) -> Result<ModelGraph, ModelError> {
    let mut b = ModelBuilder::new(weights, dtype);
    let (rows, side) = (Dim::sym("b"), spec.side());
    let shape = [rows.clone(), Dim::Known(3), side.into(), side.into()];
    let pixels = b.graph.input("pixels", Type::new(DType::F32, shape))?;
    let x = encode_images(&mut b, &spec.tower, pixels, [side, side])?;
    let x = merged(&mut b, spec, x, rows)?;
    let width = spec.tower.hidden * spec.merged * spec.merged;
    let x = b.linear(x, CONNECTOR, None, [spec.decoder.hidden, width])?;
    b.graph.output("rows", x)?;
    b.finish().with_precision(dtype)
}

/// Merges squares of adjacent patches: `[b, patches, hidden]` becomes `[b, squares, hidden of a
/// square]`, in row-major order.
fn merged(
    b: &mut ModelBuilder<'_>,
    spec: &VisionLanguageSpec,
    x: Value,
    rows: Dim,
) -> Result<Value, ModelError> {
    let (grid, merged, hidden) = (spec.grid(), spec.merged, spec.tower.hidden);
    let squares = grid / merged;
    let sides = [squares, merged, squares, merged, hidden].map(Dim::from);
    let apart: Vec<Dim> = [rows.clone()].into_iter().chain(sides).collect();
    let x = b.graph.reshape(x, apart)?;
    let x = b.graph.transpose(x, &[0, 1, 3, 2, 4, 5])?;
    let width = merged * merged * hidden;
    let together = [rows, (squares * squares).into(), width.into()];
    Ok(b.graph.reshape(x, together)?)
}
