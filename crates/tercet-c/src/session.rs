//! Sessions: compiled graphs and ONNX models, which run on tensors.

use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex};

use tercet::random::RngState;
use tercet::{CompileOptions, Device, Executable, Port, Tensor};
use tercet_models::onnx::{ImportOptions, OnnxModelSource, OnnxPort, Session};

use crate::boundary::{Caller, OwnedViews, c_string, lock, text_of_bytes};
use crate::device::{TercetDevice, device_of};
use crate::error::{CallError, TercetError, TercetStatus};
use crate::handles::{self, HandleObject};
use crate::tensor::{TensorObject, TercetDtype, TercetTensor, constant_of};

/// A compiled graph with its parameters and states, or an ONNX model.
pub struct TercetSession {
    _opaque: (),
}

/// Maximum size of a symbol of a graph, such as the number of rows.
#[repr(C)]
pub struct TercetBound {
    /// Name of the symbol.
    pub symbol: *const c_char,
    /// Maximum size.
    pub max: usize,
}

/// A tensor with the name of an input.
#[repr(C)]
pub struct TercetNamedTensor {
    /// Name of the input.
    pub name: *const c_char,
    /// The tensor, which the call does not free.
    pub tensor: *const TercetTensor,
}

/// Roles of the values of a session. Functions take them as `int32_t`.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TercetRole {
    /// Given to each run.
    Input = 0,
    /// Computed by each run.
    Output = 1,
    /// Set once, before the first run.
    Param = 2,
    /// Persists between runs.
    State = 3,
}

/// Name and type of a value of a session. The pointers are valid until the session is freed.
#[repr(C)]
pub struct TercetPort {
    /// Name.
    pub name: *const c_char,
    /// Type as text, such as "f32[rows, 3]".
    pub type_text: *const c_char,
    /// A TercetDtype; TERCET_DTYPE_NONE if the file does not tell it or tensors do not have it.
    pub dtype: i32,
    /// Number of axes; -1 if the file does not tell it.
    pub rank: i32,
    /// Sizes, outermost first; -1 for a symbol or an unknown size. NULL if the rank is -1.
    pub sizes: *const i64,
    /// Whether a run may leave out the input, because the file has a default.
    pub optional: bool,
}

/// The object of a `TercetSession`.
struct SessionObject {
    runner: Mutex<SessionRunner>,
    /// Ports by role.
    ports: [SessionPorts; 4],
}

enum SessionRunner {
    Graph(Box<dyn Executable>),
    Onnx(Box<Session>),
}

impl HandleObject for SessionObject {
    const TYPE: &'static str = "TercetSession";
    type Opaque = TercetSession;
}

struct SessionPorts {
    names: Vec<String>,
    views: OwnedViews<TercetPort>,
    /// What the views point to.
    _owned: Vec<(CString, CString, Vec<i64>)>,
    /// Names of ports with strings, which tensors of this interface do not have.
    strings: Vec<String>,
}

/// A port before it gets its C form.
struct PortFields {
    name: String,
    type_text: String,
    dtype: TercetDtype,
    sizes: Option<Vec<i64>>,
    optional: bool,
}

impl SessionPorts {
    fn new(fields: Vec<PortFields>) -> SessionPorts {
        let mut ports = SessionPorts {
            names: Vec::new(),
            views: OwnedViews(Vec::new()),
            _owned: Vec::new(),
            strings: Vec::new(),
        };
        for port in fields {
            if port.type_text.starts_with("string") {
                ports.strings.push(port.name.clone());
            }
            let owned = (
                c_string(&port.name),
                c_string(&port.type_text),
                port.sizes.clone().unwrap_or_default(),
            );
            ports.views.0.push(TercetPort {
                name: owned.0.as_ptr(),
                type_text: owned.1.as_ptr(),
                dtype: port.dtype as i32,
                rank: port.sizes.as_ref().map_or(-1, |sizes| sizes.len() as i32),
                sizes: match port.sizes {
                    Some(_) => owned.2.as_ptr(),
                    None => std::ptr::null(),
                },
                optional: port.optional,
            });
            ports._owned.push(owned);
            ports.names.push(port.name);
        }
        ports
    }

    fn of_graph(ports: &[Port]) -> SessionPorts {
        SessionPorts::new(ports.iter().map(PortFields::of_graph).collect())
    }
}

impl PortFields {
    fn of_graph(port: &Port) -> PortFields {
        let sizes = port.ty.shape.iter();
        let sizes = sizes.map(|d| d.known().map_or(-1, |n| n as i64)).collect();
        PortFields {
            name: port.name.clone(),
            type_text: port.ty.to_string(),
            dtype: constant_of(port.ty.dtype),
            sizes: Some(sizes),
            optional: false,
        }
    }

    /// A port of a file; `typed` is the port in the types of tensors, if it is known.
    fn of_onnx(port: &OnnxPort, typed: Option<&Port>) -> PortFields {
        let sizes = port.shape.as_ref().map(|shape| {
            let sizes = shape.iter().map(|size| size.parse().unwrap_or(-1));
            sizes.collect::<Vec<i64>>()
        });
        let shape = port
            .shape
            .as_ref()
            .map_or("...".to_string(), |s| s.join(", "));
        let dtype = match (port.dtype.as_str(), typed) {
            ("string" | "sequence" | "optional" | "map", _) => TercetDtype::None,
            (_, Some(typed)) => constant_of(typed.ty.dtype),
            (name, None) => named_dtype(name),
        };
        PortFields {
            name: port.name.clone(),
            type_text: format!("{}[{shape}]", port.dtype),
            dtype,
            sizes,
            optional: port.has_default || port.dtype == "optional",
        }
    }
}

/// The dtype of tensors with an ONNX dtype.
fn named_dtype(name: &str) -> TercetDtype {
    match name {
        "float32" | "float" | "float8e4m3fn" | "float8e5m2" | "float4e2m1" => TercetDtype::F32,
        "float16" => TercetDtype::F16,
        "bfloat16" => TercetDtype::Bf16,
        "float64" | "double" => TercetDtype::F64,
        "int16" => TercetDtype::I16,
        "int32" | "uint16" => TercetDtype::I32,
        "uint32" => TercetDtype::U32,
        "int64" | "uint64" => TercetDtype::I64,
        "int8" | "int4" | "int2" => TercetDtype::I8,
        "uint8" | "uint4" | "uint2" => TercetDtype::U8,
        "bool" => TercetDtype::Bool,
        _ => TercetDtype::None,
    }
}

/// Bounds of symbols by name.
fn bounds_of(
    caller: &Caller,
    bounds: *const TercetBound,
    count: usize,
) -> Result<Vec<(&str, usize)>, CallError> {
    let bounds = caller.array(bounds, count, "bounds")?.iter().enumerate();
    let bound = |(at, bound): (usize, &TercetBound)| {
        let name = caller.text(bound.symbol, &format!("bounds[{at}].symbol"))?;
        Ok((name, bound.max))
    };
    bounds.map(bound).collect()
}

impl SessionObject {
    fn from_text(
        text: &str,
        device: &Device,
        bounds: &[(&str, usize)],
    ) -> Result<SessionObject, CallError> {
        let graph = tercet::parse(text)?;
        let options = CompileOptions::new();
        let options = bounds.iter().fold(options, |options, (symbol, max)| {
            options.bound(symbol, *max)
        });
        let executable = device.compile(&graph, &options)?;
        let signature = executable.signature();
        let ports = [
            SessionPorts::of_graph(&signature.inputs),
            SessionPorts::of_graph(&signature.outputs),
            SessionPorts::of_graph(&signature.params),
            SessionPorts::of_graph(&signature.states),
        ];
        Ok(SessionObject {
            runner: Mutex::new(SessionRunner::Graph(executable)),
            ports,
        })
    }

    fn from_onnx<'a>(
        source: impl Into<OnnxModelSource<'a>>,
        device: &Device,
        bounds: &[(&str, usize)],
    ) -> Result<SessionObject, CallError> {
        let options = ImportOptions::new();
        let options = bounds.iter().fold(options, |options, (symbol, max)| {
            options.bound(symbol, *max)
        });
        let session = Session::open(source, device, &options)?;
        let about = session.about();
        let typed = |port: &OnnxPort| {
            let mut typed = session.inputs().iter();
            typed.find(|p| p.name == port.name)
        };
        let inputs = about.inputs.iter();
        let inputs = inputs.map(|port| PortFields::of_onnx(port, typed(port)));
        let outputs = about.outputs.iter();
        let outputs = outputs.map(|port| PortFields::of_onnx(port, None));
        let ports = [
            SessionPorts::new(inputs.collect()),
            SessionPorts::new(outputs.collect()),
            SessionPorts::new(Vec::new()),
            SessionPorts::new(Vec::new()),
        ];
        Ok(SessionObject {
            runner: Mutex::new(SessionRunner::Onnx(Box::new(session))),
            ports,
        })
    }

    fn ports(&self, role: TercetRole) -> &SessionPorts {
        &self.ports[role as usize]
    }

    /// Runs `body` on the executable of a graph; ONNX models have no parameters, states or seed.
    fn with_graph<T>(
        &self,
        body: impl FnOnce(&mut dyn Executable) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        match &mut *lock(&self.runner) {
            SessionRunner::Graph(executable) => body(&mut **executable),
            SessionRunner::Onnx(_) => Err(CallError::new(
                TercetStatus::Unsupported,
                "the session is of an ONNX model, which has no parameters, states or seed; use a graph in text form",
            )),
        }
    }

    /// Strings are positions in a table of the file, which this interface does not have.
    fn check_strings(&self, role: TercetRole, names: &[&str]) -> Result<(), CallError> {
        let strings = &self.ports(role).strings;
        let found = names.iter().find(|name| strings.iter().any(|s| s == *name));
        match found {
            None => Ok(()),
            Some(name) => Err(CallError::new(
                TercetStatus::Unsupported,
                format!(
                    "`{name}` is a tensor of strings, which the C API does not support; use Python or Rust"
                ),
            )),
        }
    }

    fn run(&self, inputs: &[(&str, &Tensor)], wanted: &[&str]) -> Result<Vec<Tensor>, CallError> {
        let given: Vec<&str> = inputs.iter().map(|(name, _)| *name).collect();
        self.check_strings(TercetRole::Input, &given)?;
        self.check_strings(TercetRole::Output, wanted)?;
        match &mut *lock(&self.runner) {
            SessionRunner::Graph(executable) => {
                let results = executable.run_outputs(inputs, wanted);
                executable.release_outputs();
                Ok(results?)
            }
            SessionRunner::Onnx(session) => {
                let mut results = session.run(inputs, Some(wanted))?;
                let mut ordered = Vec::with_capacity(wanted.len());
                for name in wanted {
                    let Some(at) = results.iter().position(|(found, _)| found == name) else {
                        return Err(CallError::new(
                            TercetStatus::Unsupported,
                            format!(
                                "output `{name}` is a sequence, or an optional without a value; request its parts (`{name}[0]`)"
                            ),
                        ));
                    };
                    // Tensors share their memory, so a name can be requested twice.
                    ordered.push(results[at].1.clone());
                }
                results.clear();
                Ok(ordered)
            }
        }
    }
}

/// Compiles a graph in text form, `length` bytes of UTF-8 at `text`, for a device. `bounds` are maximum sizes of the
/// symbols of its shapes; each symbol needs one. NULL is allowed if `bound_count` is 0.
///
/// Errors: TERCET_STATUS_GRAPH with line and column, TERCET_STATUS_COMPILE with every unsupported node.
///
/// Threads: calls of one session wait for each other; different sessions run in parallel. Free the session with
/// `tercet_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_session_from_text(
    device: *const TercetDevice,
    text: *const c_char,
    length: usize,
    bounds: *const TercetBound,
    bound_count: usize,
    session: *mut *mut TercetSession,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let place = caller.out_handle(session, "session")?;
        let device = device_of(device)?;
        let text = caller.elements(text.cast::<u8>(), length, "text")?;
        let text = text_of_bytes(text, "text")?;
        let bounds = bounds_of(caller, bounds, bound_count)?;
        place.create(SessionObject::from_text(text, &device, &bounds)?)
    })
}

/// Opens an ONNX model in memory, `length` bytes at `data`, which are copied. `bounds` are maximum sizes of its
/// symbols, for which the model is compiled once; without one, it is compiled for the next power of two of a size.
///
/// Errors: TERCET_STATUS_MODEL with all unsupported nodes.
///
/// Threads: as `tercet_session_from_text`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_session_from_onnx(
    device: *const TercetDevice,
    data: *const c_void,
    length: usize,
    bounds: *const TercetBound,
    bound_count: usize,
    session: *mut *mut TercetSession,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let place = caller.out_handle(session, "session")?;
        let device = device_of(device)?;
        let data = caller.elements(data.cast::<u8>(), length, "data")?;
        let bounds = bounds_of(caller, bounds, bound_count)?;
        place.create(SessionObject::from_onnx(data.to_vec(), &device, &bounds)?)
    })
}

/// Opens a file: a graph in text form (`.tercet`) or an ONNX model (`.onnx`). External data of the model is found
/// relative to it. All else is as for `tercet_session_from_text` and `tercet_session_from_onnx`.
///
/// Errors: those of these functions; TERCET_STATUS_NOT_FOUND, TERCET_STATUS_ARGUMENT for another extension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_session_open(
    device: *const TercetDevice,
    path: *const c_char,
    bounds: *const TercetBound,
    bound_count: usize,
    session: *mut *mut TercetSession,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let place = caller.out_handle(session, "session")?;
        let device = device_of(device)?;
        let path = Path::new(caller.text(path, "path")?);
        let bounds = bounds_of(caller, bounds, bound_count)?;
        if !path.exists() {
            let reason = format!("{}: the file does not exist", path.display());
            return Err(CallError::new(TercetStatus::NotFound, reason));
        }
        match path.extension().and_then(|e| e.to_str()) {
            Some("onnx") => place.create(SessionObject::from_onnx(path, &device, &bounds)?),
            Some("tercet") => {
                let unreadable = |e| {
                    let reason = format!("{}: {e}", path.display());
                    CallError::new(TercetStatus::NotFound, reason)
                };
                let bytes = std::fs::read(path).map_err(unreadable)?;
                let text = tercet::decode_text(&bytes)?;
                place.create(SessionObject::from_text(text, &device, &bounds)?)
            }
            _ => Err(CallError::argument(format!(
                "{}: expected a file with the extension .tercet or .onnx",
                path.display()
            ))),
        }
    })
}

/// Lists the values of a session with a role, a TercetRole: `*ports` points to `*count` elements in declared order,
/// which are valid until the session is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_session_ports(
    session: *const TercetSession,
    role: i32,
    ports: *mut *const TercetPort,
    count: *mut usize,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let ports = caller.out(ports, std::ptr::null(), "ports")?;
        let count = caller.out(count, 0, "count")?;
        let session = handles::get::<SessionObject>(session, "session")?;
        let role = usize::try_from(role).ok();
        let Some(found) = role.and_then(|role| session.ports.get(role)) else {
            return Err(CallError::argument(
                "`role` is not a constant of TercetRole, from 0 to 3",
            ));
        };
        ports.set(found.views.0.as_ptr());
        count.set(found.views.0.len());
        Ok(())
    })
}

/// Runs a session on inputs by name, in any order.
///
/// `outputs` are the names of the wanted outputs, and `results` gets one new tensor for each, in the same order. With
/// `outputs` NULL, `results` gets all outputs in declared order, and `output_count` must be their number. Free each
/// tensor with `tercet_free`. If the call fails, all results are NULL.
///
/// Errors: TERCET_STATUS_NAME for unknown or missing names, TERCET_STATUS_TYPE for a dtype or shape that the input does
/// not have, TERCET_STATUS_RUN with the node that failed. States are unchanged after an error.
///
/// Threads: calls of one session wait for each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_session_run(
    session: *const TercetSession,
    inputs: *const TercetNamedTensor,
    input_count: usize,
    outputs: *const *const c_char,
    output_count: usize,
    results: *mut *mut TercetTensor,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let places = caller.out_handles(results, output_count, "results")?;
        let session = handles::get::<SessionObject>(session, "session")?;
        let mut tensors: Vec<(&str, Arc<TensorObject>)> = Vec::new();
        let given = caller.array(inputs, input_count, "inputs")?;
        for (at, input) in given.iter().enumerate() {
            let name = caller.text(input.name, &format!("inputs[{at}].name"))?;
            if tensors.iter().any(|(other, _)| *other == name) {
                let reason = format!("input `{name}` is given twice");
                return Err(CallError::new(TercetStatus::Name, reason));
            }
            let what = format!("inputs[{at}].tensor");
            tensors.push((name, handles::get::<TensorObject>(input.tensor, &what)?));
        }
        let inputs: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (*n, &t.0)).collect();
        let all = &session.ports(TercetRole::Output).names;
        let wanted = match outputs.is_null() {
            false => caller.texts(outputs, output_count, "outputs")?,
            true if output_count == all.len() => all.iter().map(String::as_str).collect(),
            true => {
                return Err(CallError::argument(format!(
                    "`output_count` is {output_count} without names; the session has {}",
                    tercet::counted(all.len(), "output", "outputs")
                )));
            }
        };
        let results = session.run(&inputs, &wanted)?;
        places
            .iter()
            .zip(results)
            .try_for_each(|(place, tensor)| place.create(TensorObject(tensor)))
    })
}

/// Sets a parameter for all later runs. The session shares the memory of the tensor, which may be freed.
///
/// Errors: TERCET_STATUS_NAME, TERCET_STATUS_TYPE; TERCET_STATUS_UNSUPPORTED for ONNX models.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_session_set_param(
    session: *const TercetSession,
    name: *const c_char,
    tensor: *const TercetTensor,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let session = handles::get::<SessionObject>(session, "session")?;
        let name = caller.text(name, "name")?;
        let tensor = handles::get::<TensorObject>(tensor, "tensor")?;
        session.with_graph(|exe| Ok(exe.set_param(name, tensor.0.clone())?))
    })
}

/// Replaces the contents of a state by a copy of a tensor.
///
/// Errors: those of `tercet_session_set_param`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_session_write_state(
    session: *const TercetSession,
    name: *const c_char,
    tensor: *const TercetTensor,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let session = handles::get::<SessionObject>(session, "session")?;
        let name = caller.text(name, "name")?;
        let tensor = handles::get::<TensorObject>(tensor, "tensor")?;
        session.with_graph(|exe| Ok(exe.write_state(name, &tensor.0)?))
    })
}

/// Copies the contents of a state to a new tensor.
///
/// Errors: those of `tercet_session_set_param`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_session_read_state(
    session: *const TercetSession,
    name: *const c_char,
    tensor: *mut *mut TercetTensor,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|caller| {
        let place = caller.out_handle(tensor, "tensor")?;
        let session = handles::get::<SessionObject>(session, "session")?;
        let name = caller.text(name, "name")?;
        place.create(TensorObject(
            session.with_graph(|exe| Ok(exe.read_state(name)?))?,
        ))
    })
}

/// Sets the seed of random numbers, from the next run on.
///
/// Errors: TERCET_STATUS_UNSUPPORTED for ONNX models.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_session_set_seed(
    session: *const TercetSession,
    seed: u64,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|_| {
        let session = handles::get::<SessionObject>(session, "session")?;
        session.with_graph(|exe| {
            let random = exe.random();
            exe.set_random(RngState {
                seed: Some(seed),
                ..random
            });
            Ok(())
        })
    })
}

/// Sets every state to zeros, and the counter of random numbers to 0.
///
/// Errors: TERCET_STATUS_UNSUPPORTED for ONNX models.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tercet_session_reset(
    session: *const TercetSession,
    error: *mut *mut TercetError,
) -> TercetStatus {
    // SAFETY: the caller keeps the rules of the header.
    let caller = unsafe { Caller::new(error) };
    caller.guard(|_| {
        let session = handles::get::<SessionObject>(session, "session")?;
        session.with_graph(|exe| {
            exe.reset();
            Ok(())
        })
    })
}
