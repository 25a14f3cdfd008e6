//! Serves speech recognition models, one audio file at a time.

use axum::body::Bytes;
use tercet_models::speech::{Recognizer, SpeechOptions, SpeechTask, Transcript, audio};
use tercet_models::{Error, ModelFiles};

use crate::error::{ApiError, ServeError};
use crate::language::ModelConfig;
use crate::options::ServeOptions;
use crate::pool::{PoolStatus, WorkerThreads};
use crate::queue_ticket::QueueTicket;

/// A served speech recognition model.
pub(crate) struct TranscriberModel {
    pool: WorkerThreads<Recognizer>,
}

/// An uploaded audio file.
pub(crate) struct AudioUpload {
    /// Field of the request, for error messages.
    pub(crate) field: String,
    /// File name for error messages; its extension is a hint for the format.
    pub(crate) name: String,
    pub(crate) bytes: Bytes,
    /// Language code, if known.
    pub(crate) language: Option<String>,
    /// Sampling temperature. With 0, low-quality text is decoded again at higher temperatures.
    pub(crate) temperature: f64,
    /// Whether to compute timestamps of segments.
    pub(crate) timestamps: bool,
    /// Whether to translate the speech to English.
    pub(crate) translates: bool,
}

impl TranscriberModel {
    pub(crate) fn load(
        name: &str,
        files: &ModelFiles,
        placement: &ModelConfig,
        options: &ServeOptions,
    ) -> Result<TranscriberModel, ServeError> {
        let recognizer = files.recognizer(&placement.device);
        let recognizer = recognizer.map_err(|source| ServeError::Model {
            name: name.to_string(),
            source,
        })?;
        let pool = WorkerThreads::start(name, vec![recognizer], options.queue);
        let pool = pool.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        Ok(TranscriberModel { pool })
    }

    pub(crate) fn load_now(&self) -> PoolStatus {
        self.pool.load()
    }

    /// Transcribes an audio file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, the model does not support an option, the queue
    /// is full, the deadline is exceeded or the engine fails.
    pub(crate) async fn transcribe(
        &self,
        recording: AudioUpload,
        ticket: &QueueTicket,
    ) -> Result<Transcript, ApiError> {
        let field = recording.field.clone();
        let transcribe = move |recognizer: &mut Recognizer, go_on: &dyn Fn() -> bool| {
            // Remove the state of a request that failed midway.
            recognizer.discard();
            let done = heard(recognizer, recording, go_on);
            done.map_err(|e| match e {
                Error::Audio(_) => {
                    let message = format!("field `{field}`: {}", tercet::one_line(&e));
                    let status = axum::http::StatusCode::BAD_REQUEST;
                    ApiError::new(status, "invalid_audio", message).with_param(&field)
                }
                Error::Speech(_) => ApiError::bad_request(tercet::one_line(&e)),
                e => ApiError::failed(&e),
            })
        };
        self.pool.run_job(ticket, transcribe).await
    }
}

fn heard(
    recognizer: &mut Recognizer,
    recording: AudioUpload,
    go_on: &dyn Fn() -> bool,
) -> Result<Transcript, Error> {
    let AudioUpload {
        field: _,
        name,
        bytes,
        language,
        temperature,
        timestamps,
        translates,
    } = recording;
    audio::read_bytes(&name, bytes, &mut |samples| match go_on() {
        true => recognizer.push(samples),
        // The client has disconnected or the deadline is exceeded: discard the result.
        false => Ok(()),
    })?;
    let mut options = SpeechOptions {
        language,
        task: match translates {
            true => Some(SpeechTask::Translate),
            false => recognizer.default_task(),
        },
        timestamps,
        ..SpeechOptions::with_fallback()
    };
    if temperature > 0.0 {
        options.temperatures = vec![temperature];
    }
    recognizer.finish(&options, &mut |_| go_on())
}
