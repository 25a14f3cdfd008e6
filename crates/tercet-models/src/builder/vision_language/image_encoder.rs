//! Prompts with pictures to tokens, of which those behind the vocabulary are rows of the pictures.

use sha2::{Digest, Sha256};
use tercet::{DType, Executable, Tensor, TensorType};

use super::super::{Generator, ModelError};
use super::BATCH;
use super::prompt::{places, tokens_around, written};
use crate::config::VisionLanguageSpec;
use crate::error::Error;
use crate::picture::{Picture, TileProcessor, Tiles};
use crate::tokenizer::Tokenizer;

/// A compiled tower, which gives a [`Generator`] the pictures that a prompt is about.
pub struct PictureReader {
    exe: Box<dyn Executable>,
    processor: TileProcessor,
    side: usize,
    rows_of_tile: usize,
    /// Elements of a row.
    width: usize,
    vocab: usize,
    image_token: u32,
    pixels: Tensor,
    outputs: Vec<Tensor>,
    /// What the generator has, in order: a digest of each picture and its rows.
    read: Vec<([u8; 32], usize)>,
    rows: Vec<f32>,
}

impl PictureReader {
    pub(super) fn new(
        exe: Box<dyn Executable>,
        spec: &VisionLanguageSpec,
        processor: TileProcessor,
    ) -> PictureReader {
        let empty = Tensor::zeros(TensorType::new(DType::F32, &[0, 0, 0, 0]));
        PictureReader {
            exe,
            processor,
            side: spec.side(),
            rows_of_tile: spec.rows_of_tile(),
            width: spec.decoder.hidden,
            vocab: spec.decoder.vocab,
            image_token: spec.image_token,
            pixels: empty.expect("invariant: an empty tensor fits memory"),
            outputs: Vec::new(),
            read: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// The tokens of a prompt with pictures, each in the place of an `<image>`, and the generator knows their rows: what is fed
    /// of these tokens is about them. Pictures that the prompt before had in the same order are not computed again, and tokens
    /// that the generator has of others are forgotten. `special` adds what the tokenizer puts around texts. `progress` is
    /// called with the tiles done and those of all new pictures; false stops, and there are no tokens then.
    ///
    /// # Errors
    /// [`Error::Model`]: the prompt has other places than there are pictures ([`ModelError::Places`]), or more tokens than
    /// the context ([`ModelError::Context`]), which is known before a picture is computed; [`Error::Picture`],
    /// [`Error::Tokenizer`].
    pub fn read(
        &mut self,
        prompt: (&str, &[Picture]),
        (tokenizer, special): (&Tokenizer, bool),
        generator: &mut Generator,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Option<Vec<u32>>, Error> {
        let (text, pictures) = prompt;
        let tiles = self.tiles(text, pictures, generator.context())?;
        let text = written(text, &tiles, self.rows_of_tile);
        let mut ids = tokenizer.encode(&text, special)?;
        let (tokens, context) = (ids.len(), generator.context());
        if tokens > context {
            return Err(ModelError::Context { tokens, context }.into());
        }
        // Without pictures the token is one like any other.
        if !pictures.is_empty() {
            let all: usize = tiles.iter().map(|of| of.count() * self.rows_of_tile).sum();
            let places = ids.iter_mut().filter(|id| **id == self.image_token);
            let mut found = 0;
            for (id, row) in places.zip(self.vocab as u32..) {
                (*id, found) = (row, found + 1);
            }
            if found != all {
                return Err(ModelError::Unsupported(format!(
                    "the tokenizer makes {found} tokens {} (image_token_id) of {all} times `<image>`; tokenizer.json and \
                     config.json are not of one model",
                    self.image_token
                ))
                .into());
            }
        }
        let done = self.see(pictures, &tiles, generator, progress)?;
        Ok(done.then_some(ids))
    }

    /// The tokens as the tokenizer has them: `<image>` for rows of pictures.
    pub fn spelled(&self, tokens: &[u32]) -> Vec<u32> {
        let own = |token: &u32| match (*token as usize) < self.vocab {
            true => *token,
            false => self.image_token,
        };
        tokens.iter().map(own).collect()
    }

    /// The rows of the pictures that were read last, `[rows, width]`.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// The tiles of each picture.
    fn tiles(&self, text: &str, pictures: &[Picture], context: usize) -> Result<Vec<Tiles>, Error> {
        let (places, given) = (places(text), pictures.len());
        if places != given && given > 0 {
            return Err(ModelError::Places {
                places,
                pictures: given,
            }
            .into());
        }
        let tiles = |picture: &Picture| self.processor.tiles(picture.width(), picture.height());
        let tiles = pictures.iter().map(tiles).collect::<Result<Vec<_>, _>>()?;
        // Before there is memory for a text of them.
        let least = |of: &Tiles| of.count() * self.rows_of_tile + tokens_around(*of);
        let tokens = tiles.iter().map(least).sum();
        match tokens > context {
            true => Err(ModelError::Context { tokens, context }.into()),
            false => Ok(tiles),
        }
    }

    /// Has the generator know these pictures; false where it was stopped.
    fn see(
        &mut self,
        pictures: &[Picture],
        tiles: &[Tiles],
        generator: &mut Generator,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<bool, Error> {
        let digests: Vec<[u8; 32]> = pictures.iter().map(digest).collect();
        let same = self.read.iter().zip(&digests);
        let same = same.take_while(|((own, _), digest)| own == *digest).count();
        if same == pictures.len() && same == self.read.len() {
            return Ok(true);
        }
        self.read.truncate(same);
        let rows: usize = self.read.iter().map(|(_, rows)| rows).sum();
        self.rows.truncate(rows * self.width);
        generator.forget_from((self.vocab + rows) as u32);
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
        generator.see(self.width, &self.rows)?;
        Ok(true)
    }

    /// The rows of a picture.
    fn run(
        &mut self,
        picture: &Picture,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Option<Vec<f32>>, Error> {
        let prepared = self.processor.prepare(picture)?;
        let (count, side) = (prepared.tiles().count(), self.side);
        let mut rows = Vec::with_capacity(count * self.rows_of_tile * self.width);
        let mut done = 0;
        while done < count {
            let now = BATCH.min(count - done);
            let pixels = &mut self.pixels;
            let shape = [now, 3, side, side];
            pixels.reset_to(DType::F32, &shape).map_err(of_tensor)?;
            let to = pixels.as_slice_mut::<f32>().map_err(of_tensor)?;
            for (at, to) in to.chunks_exact_mut(3 * side * side).enumerate() {
                prepared.write(done + at, to);
            }
            let inputs = [("pixels", &self.pixels)];
            let run = self.exe.run_into(&inputs, &mut self.outputs);
            run.map_err(ModelError::from)?;
            let first = self.outputs.first();
            let first = first.ok_or_else(|| ModelError::Unsupported("no output".into()))?;
            rows.extend_from_slice(first.as_slice::<f32>().map_err(of_tensor)?);
            done += now;
            if !progress(now) {
                return Ok(None);
            }
        }
        Ok(Some(rows))
    }
}

fn digest(picture: &Picture) -> [u8; 32] {
    let mut hash = Sha256::new();
    for side in [picture.width(), picture.height()] {
        hash.update((side as u64).to_le_bytes());
    }
    hash.update(picture.rgb());
    hash.finalize().into()
}

fn of_tensor(e: tercet::TensorError) -> ModelError {
    ModelError::Unsupported(format!("the pixels or the rows of a picture: {e}"))
}
