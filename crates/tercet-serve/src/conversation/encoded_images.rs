//! The files of the images of a conversation, as requests send them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::error::ApiError;
use crate::language::ServedLanguageModel;

/// Maximum images of a request.
const MAX_IMAGES: usize = 64;

/// Collects the images of messages in their order.
#[derive(Debug)]
pub(crate) struct EncodedImages {
    /// Whether the model takes images.
    is_taken: bool,
    files: Vec<Vec<u8>>,
}

impl EncodedImages {
    pub(crate) fn new(language: &ServedLanguageModel) -> EncodedImages {
        EncodedImages {
            is_taken: language.images.is_some(),
            files: Vec::new(),
        }
    }

    /// Whether the model takes images.
    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken
    }

    /// Number of images so far.
    pub(crate) fn count(&self) -> usize {
        self.files.len()
    }

    pub(crate) fn into_files(self) -> Vec<Vec<u8>> {
        self.files
    }

    /// Adds the file in a `data:` URL. The server loads nothing from other servers.
    ///
    /// # Errors
    /// 400 with the path of the field if the URL has no data, or there are too many images.
    pub(crate) fn add_url(&mut self, url: &str, path: &str) -> Result<(), ApiError> {
        let Some(rest) = url.strip_prefix("data:") else {
            return Err(refused(
                path,
                "the server loads no images from other servers",
            ));
        };
        let Some((head, data)) = rest.split_once(',') else {
            return Err(refused(path, "the URL has no data"));
        };
        if !head.to_ascii_lowercase().ends_with(";base64") {
            return Err(refused(path, "the data is not in base64"));
        }
        self.add_base64(data, path)
    }

    /// Adds a file in base64.
    ///
    /// # Errors
    /// 400 with the path of the field if the text is no base64, or there are too many images.
    pub(crate) fn add_base64(&mut self, data: &str, path: &str) -> Result<(), ApiError> {
        if self.files.len() >= MAX_IMAGES {
            let reason = format!("the messages have more than {MAX_IMAGES} images");
            return Err(ApiError::bad_request(format!("field `{path}`: {reason}")).with_param(path));
        }
        match STANDARD.decode(data.trim()) {
            Ok(file) => {
                self.files.push(file);
                Ok(())
            }
            Err(e) => Err(refused(path, &format!("the data is not base64: {e}"))),
        }
    }
}

fn refused(path: &str, reason: &str) -> ApiError {
    let message = format!(
        "field `{path}`: {reason}; send a PNG, JPEG, WebP or GIF file as `data:image/png;base64,...`"
    );
    ApiError::bad_request(message).with_param(path)
}
