//! Graphs that are served: each slot is a compiled copy with the same parameters.

use std::time::Instant;

use axum::http::StatusCode;
use tercet::{CompileOptions, Device, Executable, Graph, Port, RunError, Signature, Tensor};
use tokio::sync::oneshot;

use crate::error::{Refusal, ServeError};
use crate::options::ServeOptions;
use crate::pool::{Load, Pool};

/// A graph with its slots.
pub(crate) struct Served {
    pub(crate) signature: Signature,
    deadline: std::time::Duration,
    pool: Pool<Box<dyn Executable>>,
}

impl Served {
    pub(crate) fn load(
        name: &str,
        graph: &Graph,
        compile: &CompileOptions,
        device: &Device,
        options: &ServeOptions,
    ) -> Result<Served, ServeError> {
        let signature = Signature::of(graph);
        let unfit = |reason: &str| ServeError::Unfit {
            name: name.to_string(),
            reason: reason.to_string(),
        };
        if !signature.params.is_empty() {
            return Err(unfit(
                "it has parameters, which no file gives; write them as constants",
            ));
        }
        if !signature.states.is_empty() {
            return Err(unfit(
                "it has states, which requests would share; give them as inputs and outputs",
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
        let pool = Pool::start(name, slots, options.queue);
        let pool = pool.map_err(|source| ServeError::Io {
            what: "cannot start a thread".into(),
            source,
        })?;
        Ok(Served {
            signature,
            deadline: options.deadline,
            pool,
        })
    }

    pub(crate) fn load_now(&self) -> Load {
        self.pool.load()
    }

    pub(crate) fn input(&self, name: &str) -> Result<&Port, Refusal> {
        find(&self.signature.inputs, name, "input")
    }

    pub(crate) fn output(&self, name: &str) -> Result<&Port, Refusal> {
        find(&self.signature.outputs, name, "output")
    }

    /// The named outputs of a run, in their order.
    ///
    /// # Errors
    /// A full queue, the deadline, inputs that do not fit.
    pub(crate) async fn run(
        &self,
        inputs: Vec<(String, Tensor)>,
        outputs: Vec<String>,
    ) -> Result<Vec<Tensor>, Refusal> {
        let (send, receive) = oneshot::channel();
        let until = Instant::now() + self.deadline;
        let queued = self.pool.submit(move |exe| {
            if send.is_closed() {
                return;
            }
            let inputs: Vec<_> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let names: Vec<&str> = outputs.iter().map(String::as_str).collect();
            let done = match Instant::now() < until {
                true => exe.run_outputs(&inputs, &names).map_err(refused),
                false => Err(Refusal::late()),
            };
            // Random numbers are those of a first run, whoever ran before.
            exe.reset();
            // Who has left needs no answer.
            let _ = send.send(done);
        });
        queued.map_err(|_| Refusal::busy())?;
        receive.await.map_err(|_| Refusal::lost())?
    }
}

/// A device that fails is not the client's fault; all else that a run refuses is in what it was given.
fn refused(e: RunError) -> Refusal {
    match &e {
        RunError::OutOfMemory { .. } | RunError::DeviceLost { .. } => Refusal::failed(&e),
        _ => Refusal::new(
            StatusCode::BAD_REQUEST,
            "invalid_request",
            tercet::one_line(&e),
        ),
    }
}

fn find<'a>(ports: &'a [Port], name: &str, what: &str) -> Result<&'a Port, Refusal> {
    ports.iter().find(|p| p.name == name).ok_or_else(|| {
        let shown: String = name.chars().take(64).collect();
        let known: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
        Refusal::bad(format!(
            "the graph has no {what} `{shown}`; it has: {}",
            known.join(", ")
        ))
    })
}
