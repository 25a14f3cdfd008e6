//! Pictures that a text is written about.

use std::path::PathBuf;

use tercet_models::dataset::{Message, Role};
use tercet_models::{DecoderOptions, Picture, PictureReader, Sampling};

use super::{Loading, Opened, Writer};
use crate::error::CliError;
use crate::interrupt::interrupted;
use crate::progress;

/// What reads pictures, and those that it was given.
pub(super) struct Seeing {
    reader: PictureReader,
    pictures: Vec<Picture>,
}

impl Loading {
    /// Opens the device and compiles a model of pictures and texts for it.
    pub(super) fn load_seeing(&self, sampling: Sampling) -> Result<Writer, CliError> {
        let spinner = progress::spinner("loading");
        let Opened {
            device,
            files,
            what,
            adapters,
        } = self.open()?;
        let model = files.vision_language(|spec| {
            let options = DecoderOptions::new(&spec.decoder);
            let context = self.context.unwrap_or(options.context);
            DecoderOptions {
                context,
                chunk: options.chunk.min(context),
                dtype: self.dtype.dtype(),
                cache: self.cache(),
                products: self.dtype.products(),
                sampling: Some(sampling),
                adapters,
                ..options
            }
        });
        let model = model.map_err(CliError::model(&*what))?;
        let tokenizer = files.tokenizer().map_err(CliError::model(&*what))?;
        let (reader, generator) = model.compile(&device).map_err(CliError::model(&*what))?;
        spinner.finish_and_clear();
        Ok(Writer {
            dtype: self.dtype.shown(&model.decoder, &device),
            noted: false,
            device,
            files,
            tokenizer,
            generator,
            eos: model.spec.decoder.eos,
            vocab: model.spec.decoder.vocab,
            reader: None,
            seeing: Some(Seeing {
                reader,
                pictures: Vec::new(),
            }),
            #[cfg(feature = "grammar")]
            constrained: None,
        })
    }
}

impl Writer {
    /// Gives the model these pictures behind those that it has.
    pub(crate) fn look(&mut self, paths: &[PathBuf]) -> Result<(), CliError> {
        if paths.is_empty() {
            return Ok(());
        }
        let Some(seeing) = &mut self.seeing else {
            let text = "the model reads no pictures; leave out --image, or name a folder of a model of pictures and texts \
                        (idefics3, smolvlm)";
            return Err(CliError::Usage(text.into()));
        };
        for path in paths {
            let picture = Picture::open(path).map_err(tercet_models::Error::from);
            let what = format!("cannot read the picture {}", path.display());
            seeing
                .pictures
                .push(picture.map_err(CliError::model(what))?);
        }
        Ok(())
    }

    /// Whether the model sees.
    pub(crate) fn sees(&self) -> bool {
        self.seeing.is_some()
    }

    /// Tokens of a prompt as the tokenizer has them.
    pub(crate) fn spelled(&self, tokens: Vec<u32>) -> Vec<u32> {
        match &self.seeing {
            Some(seeing) => seeing.reader.spelled(&tokens),
            None => tokens,
        }
    }

    /// How many pictures the model was given.
    pub(crate) fn pictures(&self) -> usize {
        self.seeing.as_ref().map_or(0, |of| of.pictures.len())
    }

    /// Leaves the model the first so many pictures.
    pub(crate) fn keep_pictures(&mut self, count: usize) {
        if let Some(seeing) = &mut self.seeing {
            seeing.pictures.truncate(count);
        }
    }

    /// A message with so many pictures, as the model's template reads it.
    pub(crate) fn message(&self, role: Role, pictures: usize, text: &str) -> Message {
        match self.sees() {
            true => Message::of_parts(role, pictures, text),
            false => Message::new(role, text),
        }
    }

    /// The tokens of a prompt that goes on. Where it has no places for pictures, they stand before it.
    pub(crate) fn prompt(&mut self, text: &str) -> Result<Vec<u32>, CliError> {
        const PLACE: &str = "<image>";
        let what = "cannot process the prompt";
        match self.pictures() {
            0 => self.encode(text, true, what),
            _ if text.contains(PLACE) => self.encode(text, true, what),
            count => {
                let text = PLACE.repeat(count) + text;
                self.encode(&text, true, what)
            }
        }
    }

    /// The tokens of a text with the pictures that the model was given.
    pub(super) fn encode(
        &mut self,
        text: &str,
        special: bool,
        what: &str,
    ) -> Result<Vec<u32>, CliError> {
        let Some(Seeing { reader, pictures }) = &mut self.seeing else {
            let tokens = self.tokenizer.encode(text, special);
            return tokens.map_err(CliError::model(what));
        };
        let bar = progress::bar("pictures", 1, "tiles");
        let read = reader.read(
            (text, pictures),
            (&self.tokenizer, special),
            &mut self.generator,
            &mut |done, all| {
                bar.set_length(all as u64);
                bar.set_position(done as u64);
                !interrupted()
            },
        );
        bar.finish_and_clear();
        let read = read.map_err(CliError::model(what))?;
        read.ok_or_else(|| CliError::Usage("interrupted while pictures were read".into()))
    }
}
