//! Speech recognizers that are served: one recording at a time.

use axum::body::Bytes;
use tercet_models::speech::{Recognizer, SpeechOptions, Transcript, audio};
use tercet_models::{Error, ModelFiles};

use crate::error::{Refusal, ServeError};
use crate::language::Placement;
use crate::options::ServeOptions;
use crate::pool::{Load, Pool};

/// A speech recognizer.
pub(crate) struct Transcriber {
    deadline: std::time::Duration,
    pool: Pool<Recognizer>,
}

/// A recording as it was sent.
pub(crate) struct Recording {
    /// What errors call it; its ending is a hint at what it is.
    pub(crate) name: String,
    pub(crate) bytes: Bytes,
    /// The code of its language, where that is known.
    pub(crate) language: Option<String>,
    /// 0 goes up by itself where a text is not good enough.
    pub(crate) temperature: f64,
    /// Whether segments are to have times.
    pub(crate) timestamps: bool,
}

impl Transcriber {
    pub(crate) fn load(
        name: &str,
        files: &ModelFiles,
        placement: &Placement,
        options: &ServeOptions,
    ) -> Result<Transcriber, ServeError> {
        let recognizer = files.recognizer(&placement.device);
        let recognizer = recognizer.map_err(|source| ServeError::Model {
            name: name.to_string(),
            source,
        })?;
        let pool = Pool::start(name, vec![recognizer], options.queue);
        let pool = pool.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        Ok(Transcriber {
            deadline: options.deadline,
            pool,
        })
    }

    pub(crate) fn load_now(&self) -> Load {
        self.pool.load()
    }

    /// What is said in a recording.
    ///
    /// # Errors
    /// A recording that cannot be read, options that the model does not have, a full queue, the deadline, the engine.
    pub(crate) async fn transcribe(&self, recording: Recording) -> Result<Transcript, Refusal> {
        let transcribe = move |recognizer: &mut Recognizer, go_on: &dyn Fn() -> bool| {
            // Of one that was refused midway.
            recognizer.discard();
            let done = heard(recognizer, recording, go_on);
            done.map_err(|e| match e {
                Error::Audio(_) => {
                    let message = format!("field `file`: {}", tercet::one_line(&e));
                    let status = axum::http::StatusCode::BAD_REQUEST;
                    Refusal::new(status, "invalid_audio", message)
                }
                Error::Speech(_) => Refusal::bad(tercet::one_line(&e)),
                e => Refusal::failed(&e),
            })
        };
        self.pool.ask(self.deadline, transcribe).await
    }
}

fn heard(
    recognizer: &mut Recognizer,
    recording: Recording,
    go_on: &dyn Fn() -> bool,
) -> Result<Transcript, Error> {
    let Recording {
        name,
        bytes,
        language,
        temperature,
        timestamps,
    } = recording;
    audio::read_bytes(&name, bytes, &mut |samples| match go_on() {
        true => recognizer.push(samples),
        // Nothing is kept of the rest, and the answer is not waited for.
        false => Ok(()),
    })?;
    let mut options = SpeechOptions {
        language,
        task: recognizer.task_to_tell(),
        timestamps,
        ..SpeechOptions::with_fallback()
    };
    if temperature > 0.0 {
        options.temperatures = vec![temperature];
    }
    recognizer.finish(&options, &mut |_| go_on())
}
