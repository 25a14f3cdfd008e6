//! Pictures among the arguments of commands that read texts with an encoder.

use std::path::Path;

use tercet::Device;
use tercet_models::{
    Embedder, EncoderOptions, Error, ModelError, ModelFiles, PictureEncoder, Prompt,
};

/// Whether an argument is the name of a picture, by its end.
pub(crate) fn is_picture(text: &str) -> bool {
    let end = Path::new(text).extension().and_then(|end| end.to_str());
    end.is_some_and(|end| ["png", "jpg", "jpeg"].contains(&end.to_ascii_lowercase().as_str()))
}

/// Both sides of a model of pictures and texts, of which those are there that arguments need.
pub(crate) struct Both {
    pictures: Option<PictureEncoder>,
    texts: Option<Embedder>,
}

impl Both {
    pub(crate) fn load(
        files: &ModelFiles,
        device: &Device,
        options: &EncoderOptions,
        items: &[String],
    ) -> Result<Both, Error> {
        if options.prompt != Prompt::Default || options.dims.is_some() {
            let reason = "prompts and --dims are for encoders of texts alone";
            return Err(ModelError::Unsupported(reason.to_string()).into());
        }
        let pictures = items.iter().any(|item| is_picture(item));
        let texts = items.iter().any(|item| !is_picture(item));
        let pictures = pictures.then(|| files.picture_encoder(device, options));
        let texts = texts.then(|| files.embedder(device, options));
        Ok(Both {
            pictures: pictures.transpose()?,
            texts: texts.transpose()?,
        })
    }

    /// Elements of a vector.
    pub(crate) fn width(&self) -> usize {
        let pictures = self.pictures.as_ref().map(PictureEncoder::width);
        pictures
            .or(self.texts.as_ref().map(Embedder::width))
            .unwrap_or(0)
    }

    /// The vectors of these pictures and texts, in their order.
    pub(crate) fn embed(
        &mut self,
        items: &[String],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let mut rows = vec![Vec::new(); items.len()];
        let (pictures, texts): (Vec<usize>, Vec<usize>) =
            (0..items.len()).partition(|&at| is_picture(&items[at]));
        let named = |of: &[usize]| of.iter().map(|&at| &items[at]).collect::<Vec<_>>();
        let mut place = |of: &[usize], found: Vec<Vec<f32>>| {
            of.iter().zip(found).for_each(|(&at, row)| rows[at] = row);
        };
        if let Some(encoder) = &mut self.pictures {
            place(&pictures, encoder.of_files(&named(&pictures), progress)?);
        }
        if let Some(embedder) = &mut self.texts {
            let before = pictures.len();
            let mut later = |done: usize| progress(before + done);
            place(&texts, embedder.embed(&named(&texts), &mut later)?);
        }
        Ok(rows)
    }
}
