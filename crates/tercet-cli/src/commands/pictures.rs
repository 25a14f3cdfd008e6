//! Images among the arguments of commands that use a text encoder.

use std::path::Path;

use tercet::Device;
use tercet_models::{
    Embedder, EmbeddingPrompt, EncoderOptions, Error, ImageEmbedder, ModelError, ModelFiles,
};

/// Whether an argument is an image file, judged by its extension.
pub(crate) fn is_image_path(text: &str) -> bool {
    let end = Path::new(text).extension().and_then(|end| end.to_str());
    end.is_some_and(|end| {
        ["png", "jpg", "jpeg", "webp", "gif"].contains(&end.to_ascii_lowercase().as_str())
    })
}

/// The image and text encoders of a CLIP-like model. Only the encoders that the arguments need are
/// loaded.
pub(crate) struct DualEncoder {
    pictures: Option<ImageEmbedder>,
    texts: Option<Embedder>,
}

impl DualEncoder {
    pub(crate) fn load(
        files: &ModelFiles,
        device: &Device,
        options: &EncoderOptions,
        items: &[String],
    ) -> Result<DualEncoder, Error> {
        if options.prompt != EmbeddingPrompt::Default || options.dims.is_some() {
            let reason = "prompts and --dims require a text encoder; leave them out";
            return Err(ModelError::Unsupported(reason.to_string()).into());
        }
        if options.pooling.is_some() {
            let reason = "--pooling requires a text encoder or a language model; leave it out";
            return Err(ModelError::Unsupported(reason.to_string()).into());
        }
        let pictures = items.iter().any(|item| is_image_path(item));
        let texts = items.iter().any(|item| !is_image_path(item));
        let pictures = pictures.then(|| files.image_embedder(device, options));
        let texts = texts.then(|| files.embedder(device, options));
        Ok(DualEncoder {
            pictures: pictures.transpose()?,
            texts: texts.transpose()?,
        })
    }

    /// Elements per vector.
    pub(crate) fn width(&self) -> usize {
        let pictures = self.pictures.as_ref().map(ImageEmbedder::width);
        pictures
            .or(self.texts.as_ref().map(Embedder::width))
            .unwrap_or(0)
    }

    /// Embeds images and texts; the vectors have the order of `items`.
    pub(crate) fn embed(
        &mut self,
        items: &[String],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let mut rows = vec![Vec::new(); items.len()];
        let (pictures, texts): (Vec<usize>, Vec<usize>) =
            (0..items.len()).partition(|&at| is_image_path(&items[at]));
        let named = |of: &[usize]| of.iter().map(|&at| &items[at]).collect::<Vec<_>>();
        let mut place = |of: &[usize], found: Vec<Vec<f32>>| {
            of.iter().zip(found).for_each(|(&at, row)| rows[at] = row);
        };
        if let Some(encoder) = &mut self.pictures {
            place(
                &pictures,
                encoder.embed_files_with_progress(&named(&pictures), progress)?,
            );
        }
        if let Some(embedder) = &mut self.texts {
            let before = pictures.len();
            let mut later = |done: usize| progress(before + done);
            place(
                &texts,
                embedder.embed_with_progress(&named(&texts), &mut later)?,
            );
        }
        Ok(rows)
    }
}
