//! Serves graphs. Each slot is a compiled copy with the same parameters.

use std::time::Instant;

use axum::http::StatusCode;
use tercet::{CompileOptions, Device, Executable, Graph, Port, RunError, Signature, Tensor};
use tokio::sync::oneshot;

use crate::error::{ApiError, ServeError};
use crate::options::ServeOptions;
use crate::pool::{PoolStatus, WorkerThreads};

/// A served graph with its slots.
pub(crate) struct GraphModel {
    pub(crate) signature: Signature,
    deadline: std::time::Duration,
    pool: WorkerThreads<Box<dyn Executable>>,
}

impl GraphModel {
    pub(crate) fn load(
        name: &str,
        graph: &Graph,
        compile: &CompileOptions,
        device: &Device,
        options: &ServeOptions,
    ) -> Result<GraphModel, ServeError> {
        let signature = Signature::of(graph);
        let unfit = |reason: &str| ServeError::InvalidGraph {
            name: name.to_string(),
            reason: reason.to_string(),
        };
        if !signature.params.is_empty() {
            return Err(unfit(
                "it has parameters, but no file with their values; use constants instead",
            ));
        }
        if !signature.states.is_empty() {
            return Err(unfit(
                "it has states, which requests would share; use inputs and outputs instead",
            ));
        }
        if signature.outputs.iter().any(|o| o.name.is_empty()) {
            return Err(unfit("an output has no name"));
        }
        let compiled = device.compile(graph, compile);
        let first = compiled.map_err(|source| ServeError::Graph {
            name: name.to_string(),
            source,
        })?;
        let mut slots = vec![first];
        while slots.len() < options.slots.max(1) {
            let another = slots[0].try_clone();
            slots.push(another.map_err(|source| ServeError::Slot {
                name: name.to_string(),
                source,
            })?);
        }
        let pool = WorkerThreads::start(name, slots, options.queue);
        let pool = pool.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        Ok(GraphModel {
            signature,
            deadline: options.deadline,
            pool,
        })
    }

    pub(crate) fn load_now(&self) -> PoolStatus {
        self.pool.load()
    }

    pub(crate) fn input(&self, name: &str) -> Result<&Port, ApiError> {
        find(&self.signature.inputs, name, "input")
    }

    pub(crate) fn output(&self, name: &str) -> Result<&Port, ApiError> {
        find(&self.signature.outputs, name, "output")
    }

    /// Runs the graph and returns the named outputs, in the order of `outputs`.
    ///
    /// # Errors
    /// Returns an error if the queue is full, the deadline is exceeded or the inputs do not match
    /// the graph.
    pub(crate) async fn run(
        &self,
        inputs: Vec<(String, Tensor)>,
        outputs: Vec<String>,
    ) -> Result<Vec<Tensor>, ApiError> {
        let (send, receive) = oneshot::channel();
        let until = Instant::now() + self.deadline;
        let queued = self.pool.submit(move |exe| {
            if send.is_closed() {
                return;
            }
            let inputs: Vec<_> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let names: Vec<&str> = outputs.iter().map(String::as_str).collect();
            let done = match Instant::now() < until {
                true => exe.run_outputs(&inputs, &names).map_err(run_error),
                false => Err(ApiError::deadline_exceeded()),
            };
            // Reset the random number stream, so that results do not depend on previous requests.
            exe.reset();
            // Sending fails if the client has disconnected.
            let _ = send.send(done);
        });
        queued.map_err(|_| ApiError::overloaded())?;
        receive.await.map_err(|_| ApiError::worker_lost())?
    }
}

/// Out-of-memory and lost-device errors are server errors. All other run errors come from the
/// request.
fn run_error(e: RunError) -> ApiError {
    match &e {
        RunError::OutOfMemory { .. } | RunError::DeviceLost { .. } => ApiError::failed(&e),
        _ => ApiError::new(
            StatusCode::BAD_REQUEST,
            "invalid_request",
            tercet::one_line(&e),
        ),
    }
}

fn find<'a>(ports: &'a [Port], name: &str, what: &str) -> Result<&'a Port, ApiError> {
    ports.iter().find(|p| p.name == name).ok_or_else(|| {
        let shown: String = name.chars().take(64).collect();
        let known: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
        ApiError::bad_request(format!(
            "the graph has no {what} `{shown}`; expected one of: {}",
            known.join(", ")
        ))
    })
}
