//! Tokenization of prompts with images; token ids above the vocabulary refer to image embedding
//! rows.

use std::ops::Range;

use sha2::{Digest, Sha256};
use tercet::{DType, Executable, Tensor, TensorType};

use super::super::compiled_decoder::EmbeddingTarget;
use super::super::{BatchGenerator, Generator, ModelError};
use super::BATCH;
use super::prompt::{expand_image_tokens, places, tokens_around};
use crate::config::VisionLanguageSpec;
use crate::image::{Image, ImageTileProcessor, ImageTiles};
use tercet_text::tokenizer::Tokenizer;

/// A compiled vision tower; it provides a [`Generator`] or [`BatchGenerator`] with the image embeddings of a prompt.
///
/// ```no_run
/// # use tercet_models::{DecoderOptions, ModelFiles};
/// # let files = ModelFiles::open("smolvlm")?;
/// # let model = files.vision_language(|spec| DecoderOptions::new(&spec.decoder))?;
/// use tercet::Device;
/// use tercet_models::Image;
/// let (mut images, mut generator) = model.compile(&Device::cpu())?;
/// let tokenizer = files.tokenizer()?;
/// let image = [Image::open("cat.jpg")?];
/// let prompt = ("<image>Describe it.", &image[..]);
/// let ids = images.read(prompt, (&tokenizer, true), &mut generator, &mut |_, _| true)?;
/// assert!(ids.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ImageEncoder {
    exe: Box<dyn Executable>,
    reader: ImagePromptReader,
    side: usize,
    /// Elements per embedding row.
    width: usize,
    pixels: Tensor,
    outputs: Vec<Tensor>,
    /// Images known to the generator, in order: digest and number of embedding rows.
    read: Vec<([u8; 32], usize)>,
    rows: Vec<f32>,
}

impl ImageEncoder {
    pub(super) fn new(
        exe: Box<dyn Executable>,
        spec: &VisionLanguageSpec,
        processor: ImageTileProcessor,
    ) -> ImageEncoder {
        let empty = Tensor::zeros(TensorType::new(DType::F32, &[0, 0, 0, 0]));
        ImageEncoder {
            exe,
            reader: ImagePromptReader {
                processor,
                rows_of_tile: spec.rows_of_tile(),
                vocab: spec.decoder.vocab,
                image_token: spec.image_token,
            },
            side: spec.side(),
            width: spec.decoder.hidden,
            pixels: empty.expect("invariant: an empty tensor fits memory"),
            outputs: Vec::new(),
            read: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Tokenizes a prompt with one `<image>` placeholder per image and sets the generator's image
    /// embeddings. Images that match the previous prompt in the same order are not recomputed.
    /// Cached tokens of other images are removed from the generator.
    ///
    /// `special` adds the tokenizer's special tokens. `progress` receives the number of finished
    /// tiles and the total for all new images. If `progress` returns false, the call stops and
    /// returns no tokens.
    ///
    /// # Errors
    /// [`ModelError::Places`] if the numbers of placeholders and images differ,
    /// [`ModelError::Context`] if the prompt exceeds the context. The context length is checked
    /// before any image is computed. [`ModelError::Image`], [`ModelError::Tokenizer`].
    pub fn read(
        &mut self,
        (text, pictures): (&str, &[Image]),
        tokenizer: (&Tokenizer, bool),
        generator: &mut Generator,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<Vec<u32>>, ModelError> {
        self.read_mixed((text, &[], pictures), tokenizer, generator, progress)
    }

    /// Like [`Self::read`], for a prompt whose byte ranges `literal` are user input: placeholders
    /// and special tokens spelled there are ordinary text ([`Tokenizer::encode_mixed`]).
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    pub fn read_mixed(
        &mut self,
        (text, literal, pictures): (&str, &[Range<usize>], &[Image]),
        (tokenizer, special): (&Tokenizer, bool),
        generator: &mut Generator,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<Vec<u32>>, ModelError> {
        let tokenizer = (tokenizer, special);
        let context = generator.context();
        let ids = (self.reader).read((text, literal, pictures), tokenizer, context)?;
        let done = self.encode_images(pictures, generator, progress)?;
        Ok(done.then_some(ids))
    }

    /// A reader of prompts for this model, which computes no images.
    pub fn prompt_reader(&self) -> ImagePromptReader {
        self.reader.clone()
    }

    /// Computes the images of a prompt of [`ImagePromptReader::read`] and sets the image embeddings of
    /// the next sequence, as [`Self::read`] does. Returns false if `progress` stopped it.
    ///
    /// # Errors
    /// [`ModelError::NoSlot`] while a sequence is active. [`ModelError::Image`], and those of the
    /// device.
    pub fn set_images(
        &mut self,
        pictures: &[Image],
        generator: &mut BatchGenerator,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<bool, ModelError> {
        let slots = generator.slots();
        if generator.free() < slots {
            return Err(ModelError::NoSlot { slots });
        }
        self.encode_images(pictures, generator, progress)
    }

    /// Token ids as the tokenizer produces them: embedding rows become the `<image>` token.
    pub fn to_tokenizer_ids(&self, tokens: &[u32]) -> Vec<u32> {
        self.reader.to_tokenizer_ids(tokens)
    }

    /// Embedding rows of the images read last, `[rows, width]`.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// Computes the embeddings of new images and passes all of them to the generator. Returns false
    /// if `progress` stopped it.
    fn encode_images(
        &mut self,
        pictures: &[Image],
        generator: &mut impl EmbeddingTarget,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<bool, ModelError> {
        let tiles = self.reader.tile_layouts(pictures)?;
        let digests: Vec<[u8; 32]> = pictures.iter().map(digest).collect();
        let same = self.read.iter().zip(&digests);
        let same = same.take_while(|((own, _), digest)| own == *digest).count();
        if same == pictures.len() && same == self.read.len() {
            return Ok(true);
        }
        self.read.truncate(same);
        let rows: usize = self.read.iter().map(|(_, rows)| rows).sum();
        self.rows.truncate(rows * self.width);
        generator.truncate_from((self.reader.vocab + rows) as u32);
        let count = tiles[same..].iter().map(|of| of.count()).sum();
        let mut done = 0;
        for (at, picture) in pictures.iter().enumerate().skip(same) {
            let own = self.run(picture, &mut |now| {
                done += now;
                progress(done, count)
            })?;
            let Some(own) = own else {
                return Ok(false);
            };
            self.read.push((digests[at], own.len() / self.width));
            self.rows.extend(own);
        }
        generator.set_image_embeddings(self.width, &self.rows)?;
        Ok(true)
    }

    /// Embedding rows of one image.
    fn run(
        &mut self,
        picture: &Image,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        let prepared = self.reader.processor.prepare(picture)?;
        let (count, side) = (prepared.tiles().count(), self.side);
        let mut rows = Vec::with_capacity(count * self.reader.rows_of_tile * self.width);
        let mut done = 0;
        while done < count {
            let now = BATCH.min(count - done);
            let pixels = &mut self.pixels;
            let shape = [now, 3, side, side];
            pixels.reset_to(DType::F32, &shape).map_err(tensor_error)?;
            let to = pixels.as_slice_mut::<f32>().map_err(tensor_error)?;
            for (at, to) in to.chunks_exact_mut(3 * side * side).enumerate() {
                prepared.write_tile(done + at, to);
            }
            let inputs = [("pixels", &self.pixels)];
            let run = self.exe.run_into(&inputs, &mut self.outputs);
            run.map_err(ModelError::from)?;
            let first = self.outputs.first();
            let first = first.ok_or_else(|| ModelError::Unsupported("no output".into()))?;
            rows.extend_from_slice(first.as_slice::<f32>().map_err(tensor_error)?);
            done += now;
            if !progress(now) {
                return Ok(None);
            }
        }
        Ok(Some(rows))
    }
}

/// Tokenizes prompts with images for an [`ImageEncoder`], without computing the images.
///
/// ```no_run
/// # use tercet_models::{DecoderOptions, ModelFiles};
/// # let files = ModelFiles::open("smolvlm")?;
/// # let model = files.vision_language(|spec| DecoderOptions::new(&spec.decoder))?;
/// use tercet::Device;
/// use tercet_models::Image;
/// # use tercet_models::BatchOptions;
/// # let model = files.vision_language_batch(|spec| BatchOptions::new(&spec.decoder, 1))?;
/// let (mut images, mut generator) = model.compile_batch(&Device::cpu())?;
/// let tokenizer = files.tokenizer()?;
/// let image = [Image::open("cat.jpg")?];
/// let prompt = ("<image>Describe it.", &[][..], &image[..]);
/// let ids = images.prompt_reader().read(prompt, (&tokenizer, true), generator.context())?;
/// assert!(images.set_images(&image, &mut generator, &mut |_, _| true)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImagePromptReader {
    processor: ImageTileProcessor,
    rows_of_tile: usize,
    vocab: usize,
    image_token: u32,
}

impl ImagePromptReader {
    /// Tokens of a prompt with one `<image>` placeholder per image, as [`ImageEncoder::read_mixed`]
    /// returns them.
    ///
    /// # Errors
    /// [`ModelError::Places`] if the numbers of placeholders and images differ,
    /// [`ModelError::Context`] if the prompt exceeds `context` tokens. [`ModelError::Image`],
    /// [`ModelError::Tokenizer`].
    pub fn read(
        &self,
        (text, literal, pictures): (&str, &[Range<usize>], &[Image]),
        (tokenizer, special): (&Tokenizer, bool),
        context: usize,
    ) -> Result<Vec<u32>, ModelError> {
        let places = places(text, literal);
        let tiles = self.tiles(places.len(), pictures, context)?;
        let (text, literal) =
            expand_image_tokens((text, literal), &places, &tiles, self.rows_of_tile);
        let mut ids = match special {
            true => tokenizer.encode(&text, true)?,
            false => tokenizer.encode_mixed(&text, &literal)?,
        };
        let tokens = ids.len();
        if tokens > context {
            return Err(ModelError::Context { tokens, context });
        }
        // Without images, `<image>` is ordinary text.
        if !pictures.is_empty() {
            let all: usize = tiles.iter().map(|of| of.count() * self.rows_of_tile).sum();
            let places = ids.iter_mut().filter(|id| **id == self.image_token);
            let mut found = 0;
            for (id, row) in places.zip(self.vocab as u32..) {
                (*id, found) = (row, found + 1);
            }
            if found != all {
                return Err(ModelError::Unsupported(format!(
                    "the tokenizer produces {found} tokens {} (image_token_id) for {all} times `<image>`; tokenizer.json and \
                     config.json belong to different models",
                    self.image_token
                )));
            }
        }
        Ok(ids)
    }

    /// Token ids as the tokenizer produces them: embedding rows become the `<image>` token.
    pub fn to_tokenizer_ids(&self, tokens: &[u32]) -> Vec<u32> {
        let own = |token: &u32| match (*token as usize) < self.vocab {
            true => *token,
            false => self.image_token,
        };
        tokens.iter().map(own).collect()
    }

    /// Tile layout of each image.
    fn tile_layouts(&self, pictures: &[Image]) -> Result<Vec<ImageTiles>, ModelError> {
        let tiles = |picture: &Image| self.processor.tiles(picture.width(), picture.height());
        Ok(pictures.iter().map(tiles).collect::<Result<Vec<_>, _>>()?)
    }

    /// Tile layout of each image of a prompt with this many places.
    fn tiles(
        &self,
        places: usize,
        pictures: &[Image],
        context: usize,
    ) -> Result<Vec<ImageTiles>, ModelError> {
        let given = pictures.len();
        if places != given && given > 0 {
            return Err(ModelError::Places {
                places,
                pictures: given,
            });
        }
        let tiles = self.tile_layouts(pictures)?;
        // Check the length before allocating the expanded prompt.
        let least = |of: &ImageTiles| of.count() * self.rows_of_tile + tokens_around(*of);
        let tokens = tiles.iter().map(least).sum();
        match tokens > context {
            true => Err(ModelError::Context { tokens, context }),
            false => Ok(tiles),
        }
    }
}

fn digest(picture: &Image) -> [u8; 32] {
    let mut hash = Sha256::new();
    for side in [picture.width(), picture.height()] {
        hash.update((side as u64).to_le_bytes());
    }
    hash.update(picture.rgb());
    hash.finalize().into()
}

fn tensor_error(e: tercet::TensorError) -> ModelError {
    ModelError::Unsupported(format!("pixels or embedding rows of an image: {e}"))
}
