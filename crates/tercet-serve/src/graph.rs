//! Serves graphs. Each slot is a compiled copy with the same parameters.

use std::sync::Arc;

use axum::http::StatusCode;
use tercet::{CompileOptions, Device, Executable, Graph, Port, RunError, Signature, Tensor};

use crate::error::{ApiError, ServeError};
use crate::options::ServeOptions;
use crate::pool::{PoolStatus, WorkerThreads};
use crate::queue_ticket::QueueTicket;

/// Cuts the outputs of a run of the whole graph to those that clients see.
pub type OutputTrim = Arc<dyn Fn(Vec<Tensor>) -> Result<Vec<Tensor>, String> + Send + Sync>;

/// A graph to serve, with values of its parameters.
///
/// ```
/// use tercet::{DType, Graph, Tensor, Type, ops, scalar::BinaryFn};
/// use tercet_serve::GraphParts;
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2]))?;
/// let w = g.param("w", Type::new(DType::F32, [2]))?;
/// let y = g.add(ops::Binary { f: BinaryFn::Add }, &[x, w])?;
/// g.output("y", y)?;
/// let w = Tensor::from_slice(&[2], &[1.0f32, 2.0])?;
/// let parts = GraphParts { params: vec![("w".into(), w)], ..GraphParts::from(g) };
/// assert!(parts.trim.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct GraphParts {
    /// The graph.
    pub graph: Graph,
    /// Values of all parameters, by name.
    pub params: Vec<(String, Tensor)>,
    /// Number of outputs that clients see, which are the first ones; `None` means all.
    pub visible_outputs: Option<usize>,
    /// Conversion of all outputs of a run to the visible ones.
    pub trim: Option<OutputTrim>,
}

impl From<Graph> for GraphParts {
    /// A graph without parameters, with all of its outputs.
    fn from(graph: Graph) -> GraphParts {
        GraphParts {
            graph,
            params: Vec::new(),
            visible_outputs: None,
            trim: None,
        }
    }
}

/// A served graph with its slots.
pub(crate) struct GraphModel {
    pub(crate) signature: Signature,
    trim: Option<OutputTrim>,
    pool: WorkerThreads<Box<dyn Executable>>,
}

impl GraphModel {
    pub(crate) fn load(
        name: &str,
        parts: &GraphParts,
        compile: &CompileOptions,
        device: &Device,
        options: &ServeOptions,
    ) -> Result<GraphModel, ServeError> {
        let graph = &parts.graph;
        let mut signature = Signature::of(graph);
        let unfit = |reason: &str| ServeError::InvalidGraph {
            name: name.to_string(),
            reason: reason.to_string(),
        };
        let is_given = |name: &str| parts.params.iter().any(|(known, _)| known == name);
        if let Some(param) = signature.params.iter().find(|p| !is_given(&p.name)) {
            return Err(unfit(&format!(
                "it has the parameter `{}`, but no value of it; use a constant instead",
                param.name
            )));
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
        let mut first = compiled.map_err(|source| ServeError::Graph {
            name: name.to_string(),
            source,
        })?;
        for (param, value) in &parts.params {
            // Compilation removes parameters that no output depends on.
            if first.signature().params.iter().any(|p| p.name == *param) {
                let set = first.set_param(param, value.clone());
                set.map_err(|e| unfit(&format!("parameter `{param}`: {}", tercet::one_line(&e))))?;
            }
        }
        signature.params.clear();
        signature
            .outputs
            .truncate(parts.visible_outputs.unwrap_or(usize::MAX));
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
            trim: parts.trim.clone(),
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
        ticket: &QueueTicket,
    ) -> Result<Vec<Tensor>, ApiError> {
        let places: Vec<usize> = outputs
            .iter()
            .filter_map(|name| self.signature.outputs.iter().position(|o| o.name == *name))
            .collect();
        let trim = self.trim.clone();
        let run = move |exe: &mut Box<dyn Executable>, _: &dyn Fn() -> bool| {
            let inputs: Vec<_> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
            let names: Vec<&str> = outputs.iter().map(String::as_str).collect();
            let done = match &trim {
                None => exe.run_outputs(&inputs, &names).map_err(run_error),
                Some(trim) => exe
                    .run(&inputs)
                    .map_err(run_error)
                    .and_then(|all| trimmed(trim, all, &places)),
            };
            // Reset the random number stream, so that results do not depend on previous requests.
            exe.reset();
            done
        };
        self.pool.run_job(ticket, run).await
    }
}

/// The outputs at `places` of a trimmed result.
fn trimmed(trim: &OutputTrim, all: Vec<Tensor>, places: &[usize]) -> Result<Vec<Tensor>, ApiError> {
    let failed =
        |message: String| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "engine_error", message);
    let visible = trim(all).map_err(failed)?;
    let of = |at: &usize| visible.get(*at).cloned();
    let chosen: Option<Vec<Tensor>> = places.iter().map(of).collect();
    chosen.ok_or_else(|| failed("an output of the graph is missing".to_string()))
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
