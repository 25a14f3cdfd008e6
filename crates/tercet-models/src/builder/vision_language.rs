//! Models of pictures and texts that write: the graphs of any [`VisionLanguageSpec`].
//!
//! Two graphs. The tower's runs once for the tiles of a picture; its rows take the places of tokens in the decoder's, which is
//! that of a [`Decoder`] with [`DecoderOptions::pictures`].
//!
//! | graph | inputs | outputs |
//! |---|---|---|
//! | tower | `pixels` F32 `[b, 3, side, side]`, normalized | `rows` F32 `[b, rows of a tile, hidden of the decoder]` |
//! | decoder | those of [`Decoder`], and `pictures` F32 `[p, hidden]` | those of [`Decoder`] |
//!
//! A token of the number `vocab + i` is the row `i` of `pictures`: prompts with pictures are tokens like any others, for parts of
//! prompts, what a cache has already, and going back.

mod prompt;
mod reader;

use tercet::{CompileOptions, DType, Device, Dim, Type, Value};

use super::decoder::{Decoder, DecoderOptions};
use super::encoder::encode_pictures;
use super::generator::Generator;
use super::{Builder, Model, ModelError, Weights};
use crate::config::VisionLanguageSpec;
use crate::config::vision_language::CONNECTOR;
use crate::picture::TileProcessor;
pub use reader::PictureReader;

/// Tiles of a run of the tower.
const BATCH: usize = 4;

/// A model of pictures and texts: graphs and parameters.
#[derive(Debug)]
pub struct VisionLanguage {
    /// Tiles to rows.
    pub tower: Model,
    /// Tokens and rows to logits.
    pub decoder: Decoder,
    /// How pictures become tiles.
    pub processor: TileProcessor,
    /// The configuration they were built from.
    pub spec: VisionLanguageSpec,
}

impl VisionLanguage {
    /// Builds the graphs over the weights of a folder. As many rows of pictures as tokens fit the context.
    ///
    /// # Errors
    /// [`ModelError`] when a weight is missing or of another shape or format, or an option is not possible.
    pub fn build(
        spec: &VisionLanguageSpec,
        processor: TileProcessor,
        weights: &Weights,
        options: DecoderOptions,
    ) -> Result<VisionLanguage, ModelError> {
        let tower = tower(spec, weights, options.dtype)?;
        let options = DecoderOptions {
            pictures: options.context,
            ..options
        };
        Ok(VisionLanguage {
            tower,
            decoder: Decoder::build(&spec.decoder, weights, options)?,
            processor,
            spec: spec.clone(),
        })
    }

    /// Compiles both graphs for a device.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn compile(&self, device: &Device) -> Result<(PictureReader, Generator), ModelError> {
        let options = CompileOptions::new().bound("b", BATCH);
        let exe = self.tower.compile(device, &options)?;
        let reader = PictureReader::new(exe, &self.spec, self.processor.clone());
        Ok((reader, self.decoder.generator(device)?))
    }
}

/// The tower and the connector, computed in `dtype`.
fn tower(spec: &VisionLanguageSpec, weights: &Weights, dtype: DType) -> Result<Model, ModelError> {
    let mut b = Builder::new(weights, dtype);
    let (rows, side) = (Dim::sym("b"), spec.side());
    let shape = [rows.clone(), Dim::Known(3), side.into(), side.into()];
    let pixels = b.graph.input("pixels", Type::new(DType::F32, shape))?;
    let x = encode_pictures(&mut b, &spec.tower, pixels, [side, side])?;
    let x = merged(&mut b, spec, x, rows)?;
    let width = spec.tower.hidden * spec.merged * spec.merged;
    let x = b.linear(x, CONNECTOR, None, [spec.decoder.hidden, width])?;
    b.graph.output("rows", x)?;
    b.finish().with_precision(dtype)
}

/// The states of squares of patches side by side: `[b, patches, hidden]` as `[b, squares, hidden of a square]`, row by row.
fn merged(
    b: &mut Builder<'_>,
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
