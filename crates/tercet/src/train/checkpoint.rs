//! Checkpoints: all states of a training run in one safetensors file.
//!
//! The file metadata has one JSON document under the key `tercet.train`. The document contains the
//! format version, the step count, the seed and counter of random numbers, the fingerprint of the
//! states, and data of the caller. A file is written under a temporary name, synced and renamed, so
//! an interrupted write leaves the previous checkpoint intact. Tensors are written and read one at
//! a time.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use tercet_ir::random::RngState;
use tercet_ir::{Bindings, DType, RunError, Tensor, TensorError, TensorType, Type};

use super::error::TrainError;
use super::state::StateInfo;
use super::step::TrainStep;
use super::trainer::Trainer;

/// Metadata key.
const KEY: &str = "tercet.train";
/// Format version of this implementation.
const FORMAT: u32 = 1;
/// Maximum header length in bytes, as in the safetensors library.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Errors of reading and writing checkpoints.
///
/// ```
/// use tercet::train::{CheckpointError, TrainError, checkpoint_info};
/// let error = checkpoint_info("missing.safetensors").unwrap_err();
/// let TrainError::Checkpoint { source, .. } = error else { panic!("another error") };
/// assert!(matches!(source, CheckpointError::Io { doing: "open", .. }));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file operation failed.
    #[error("cannot {doing}")]
    Io {
        /// `open`, `read`, `write`, `sync` or `rename`.
        doing: &'static str,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a valid safetensors file.
    #[error("it is not a safetensors file: {reason}")]
    Format {
        /// Description of the error.
        reason: String,
    },
    /// The file length does not match its header.
    #[error("it has {found} bytes, its header says {expected}: it {}", if .found < .expected { "is truncated" } else { "has trailing data" })]
    Length {
        /// Length according to the header, in bytes.
        expected: u64,
        /// Actual length in bytes.
        found: u64,
    },
    /// The file is a safetensors file without training metadata.
    #[error(
        "it is not a checkpoint of a training run: its metadata has no `{KEY}`; set single weights with `Trainer::set_state`"
    )]
    NotACheckpoint,
    /// The format version is not supported.
    #[error("its format version is {found}; expected {FORMAT}")]
    Version {
        /// Format version of the file.
        found: u32,
    },
    /// A state of the training step is missing in the file.
    #[error(
        "it has no state `{name}`, expected {expected}: it belongs to another model or optimizer"
    )]
    Missing {
        /// Name of the first missing state, in the order of the step's states.
        name: String,
        /// Type of the state in the training step.
        expected: String,
    },
    /// A state has a different type in the file.
    #[error("its state `{name}` is {found}, expected {expected}: it belongs to another model")]
    Type {
        /// Name of the first state with another type, in the order of the step's states.
        name: String,
        /// Type of the state in the training step.
        expected: String,
        /// Type of the state in the file.
        found: String,
    },
    /// The file contains a state that the training step does not have.
    #[error("it has an unexpected state `{name}`: it belongs to another model or optimizer")]
    Extra {
        /// Name of the first state that the training step does not have, in alphabetical order.
        name: String,
    },
    /// The header was modified.
    #[error("its fingerprint is {found}, but its states give {expected}")]
    Fingerprint {
        /// Fingerprint computed from the states of the file.
        expected: String,
        /// Fingerprint in the metadata.
        found: String,
    },
    /// A state could not be read from or written to the device.
    #[error("state `{name}`")]
    State {
        /// Name of the state.
        name: String,
        /// The device error.
        #[source]
        source: RunError,
    },
    /// A tensor could not be allocated.
    #[error("state `{name}`")]
    Tensor {
        /// Name of the state.
        name: String,
        /// The allocation error.
        #[source]
        source: TensorError,
    },
}

fn io(doing: &'static str) -> impl Fn(std::io::Error) -> CheckpointError {
    move |source| CheckpointError::Io { doing, source }
}

/// Metadata of a checkpoint.
///
/// ```
/// # use tercet::train::{LearningRateSchedule, Sgd, StepOptions, TrainStep, Trainer};
/// # use tercet::{CompileOptions, DType, Device, Graph, Tensor, Type};
/// # let mut g = Graph::new();
/// # let w = g.state("w", Type::new(DType::F32, [2]))?;
/// # let square = g.mul(w, w)?;
/// # let loss = g.reduce_sum(square, &[0], false)?;
/// # let options = StepOptions::default();
/// # let step = TrainStep::build(&g, loss, &["w".into()], &Sgd::default(), &options)?;
/// # let schedule = LearningRateSchedule::constant(0.5);
/// # let mut trainer = Trainer::new(&Device::cpu(), step, schedule, &CompileOptions::new())?;
/// # trainer.set_state("w", &Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
/// use std::collections::BTreeMap;
/// use tercet::train::checkpoint_info;
/// let path = std::env::temp_dir().join(format!("checkpoint-{}.safetensors", std::process::id()));
/// trainer.step(&[])?;
/// let user = BTreeMap::from([("epoch".to_string(), "3".to_string())]);
/// trainer.save(&path, &user)?;
/// let info = checkpoint_info(&path)?;
/// assert_eq!((info.steps, info.user), (1, user));
/// std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointInfo {
    /// Format version.
    format: u32,
    /// Number of finished steps.
    pub steps: u64,
    /// Seed of the random numbers, if one was set.
    pub seed: Option<u64>,
    /// Random number counter of the next step.
    pub counter: u64,
    /// [`TrainStep::fingerprint`] of the training step.
    pub fingerprint: String,
    /// Data of the caller, such as the position in the data.
    pub user: BTreeMap<String, String>,
}

impl TrainStep {
    /// 16 hexadecimal digits that identify the names and types of all states. Restoring compares
    /// them.
    pub fn fingerprint(&self) -> String {
        let states = self.states().iter();
        fingerprint(
            states
                .map(|s| (s.name.as_str(), s.ty.to_string()))
                .collect(),
        )
    }
}

/// FNV-1a hash of names and types, in alphabetical order of the names.
fn fingerprint(mut states: Vec<(&str, String)>) -> String {
    states.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (name, ty) in states {
        for byte in name.bytes().chain([0]).chain(ty.bytes()).chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    format!("{hash:016x}")
}

/// Dtypes of states, with their names in the safetensors format.
const DTYPES: [(DType, Dtype); 11] = [
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F64, Dtype::F64),
    (DType::I32, Dtype::I32),
    (DType::U32, Dtype::U32),
    (DType::I64, Dtype::I64),
    (DType::I16, Dtype::I16),
    (DType::I8, Dtype::I8),
    (DType::U8, Dtype::U8),
    (DType::Bool, Dtype::BOOL),
];

fn safetensors_dtype(dtype: DType) -> Option<Dtype> {
    let found = DTYPES.iter().find(|(own, _)| *own == dtype);
    found.map(|(_, safe)| *safe)
}

/// Type of a tensor in a file, in the notation of graphs.
fn type_string(info: &TensorInfo) -> String {
    let known = DTYPES.iter().find(|(_, safe)| *safe == info.dtype);
    match known {
        Some((own, _)) => Type::new(*own, &info.shape[..]).to_string(),
        None => format!("{}{:?}", info.dtype, info.shape),
    }
}

fn type_of(state: &StateInfo) -> Result<TensorType, CheckpointError> {
    let ty = state.ty.eval(&Bindings::new());
    ty.map_err(|e| CheckpointError::State {
        name: state.name.clone(),
        source: e.into(),
    })
}

/// Temporary path of a file that is being written.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    path.with_file_name(name)
}

/// Makes a rename durable by syncing the folder, if the system supports that.
fn sync_folder(path: &Path) {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // Some systems cannot open or sync a folder. The file itself is already synced.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
}

/// Header of a file with these states. The header starts with its length, and padding aligns the
/// tensors.
fn header(
    info: &CheckpointInfo,
    states: &[(&StateInfo, TensorType)],
) -> Result<Vec<u8>, CheckpointError> {
    let refused = |reason: String| CheckpointError::Format { reason };
    let text = serde_json::to_string(info).map_err(|e| refused(e.to_string()))?;
    let (mut at, mut tensors) = (0, Vec::with_capacity(states.len()));
    for (state, ty) in states {
        let dtype = safetensors_dtype(ty.dtype)
            .ok_or_else(|| refused(format!("the format does not support {}", ty.dtype)))?;
        let end = at + ty.size_bytes();
        let tensor = TensorInfo {
            dtype,
            shape: ty.shape.to_vec(),
            data_offsets: (at, end),
        };
        tensors.push((state.name.clone(), tensor));
        at = end;
    }
    let user = [(KEY.to_string(), text)].into_iter().collect();
    let metadata = Metadata::new(Some(user), tensors).map_err(|e| refused(e.to_string()))?;
    let mut json = serde_json::to_vec(&metadata).map_err(|e| refused(e.to_string()))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    Ok(bytes)
}

/// A file whose header was parsed and matches the file length.
struct CheckpointFile {
    file: BufReader<File>,
    info: CheckpointInfo,
    /// Tensors in file order.
    tensors: Vec<(String, TensorInfo)>,
}

fn open(path: &Path) -> Result<CheckpointFile, CheckpointError> {
    let file = File::open(path).map_err(io("open"))?;
    let found = file.metadata().map_err(io("open"))?.len();
    let mut file = BufReader::new(file);
    let refused = |reason: String| CheckpointError::Format { reason };
    if found < 8 {
        return Err(CheckpointError::Length { expected: 8, found });
    }
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(io("read"))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(refused(format!(
            "header of {length} bytes is too long; at most {MAX_HEADER_BYTES} bytes are supported"
        )));
    }
    if length + 8 > found {
        let expected = length + 8;
        return Err(CheckpointError::Length { expected, found });
    }
    let mut json = vec![0; length as usize];
    file.read_exact(&mut json).map_err(io("read"))?;
    let metadata: Metadata = serde_json::from_slice(&json).map_err(|e| refused(e.to_string()))?;
    let expected = (8 + length).saturating_add(metadata.data_len() as u64);
    if expected != found {
        return Err(CheckpointError::Length { expected, found });
    }
    let text = metadata.metadata().as_ref().and_then(|user| user.get(KEY));
    let text = text.ok_or(CheckpointError::NotACheckpoint)?;
    #[derive(Deserialize)]
    struct FormatVersion {
        format: u32,
    }
    let version: FormatVersion = serde_json::from_str(text).map_err(|e| refused(e.to_string()))?;
    if version.format != FORMAT {
        let found = version.format;
        return Err(CheckpointError::Version { found });
    }
    let info: CheckpointInfo = serde_json::from_str(text).map_err(|e| refused(e.to_string()))?;
    let names = metadata.offset_keys().into_iter();
    let tensors = names.filter_map(|name| Some((name.clone(), metadata.info(&name)?.clone())));
    let tensors: Vec<(String, TensorInfo)> = tensors.collect();
    let own = tensors
        .iter()
        .map(|(name, info)| (name.as_str(), type_string(info)));
    let own = fingerprint(own.collect());
    if own != info.fingerprint {
        let found = info.fingerprint;
        return Err(CheckpointError::Fingerprint {
            expected: own,
            found,
        });
    }
    Ok(CheckpointFile {
        file,
        info,
        tensors,
    })
}

impl CheckpointFile {
    /// Returns an error if the states differ from those of a training step.
    fn check(&self, step: &TrainStep) -> Result<(), CheckpointError> {
        let there = self
            .tensors
            .iter()
            .map(|(name, info)| (name.as_str(), info));
        let there: HashMap<&str, &TensorInfo> = there.collect();
        for state in step.states() {
            let (name, expected) = (state.name.clone(), state.ty.to_string());
            let Some(info) = there.get(name.as_str()) else {
                return Err(CheckpointError::Missing { name, expected });
            };
            let found = type_string(info);
            if found != expected {
                return Err(CheckpointError::Type {
                    name,
                    expected,
                    found,
                });
            }
        }
        let here = |name: &str| step.states().iter().any(|s| s.name == name);
        let mut extra = there.keys().filter(|name| !here(name)).collect::<Vec<_>>();
        extra.sort();
        match extra.first() {
            Some(name) => Err(CheckpointError::Extra {
                name: (**name).to_string(),
            }),
            None => Ok(()),
        }
    }
}

/// Reads the metadata of a checkpoint: step count and data of the caller. Reads only the header.
///
/// # Errors
/// [`TrainError::Checkpoint`] if the file cannot be read, has the wrong length or is not a
/// checkpoint.
pub fn checkpoint_info(path: impl AsRef<Path>) -> Result<CheckpointInfo, TrainError> {
    let path = path.as_ref();
    open(path).map(|opened| opened.info).map_err(at(path))
}

fn at(path: &Path) -> impl Fn(CheckpointError) -> TrainError {
    move |source| TrainError::Checkpoint {
        path: path.to_path_buf(),
        source,
    }
}

impl Trainer {
    /// Saves every state, the step count, the seed and counter of random numbers, and data of the
    /// caller (such as the position in the data). An existing file stays intact until the new one
    /// is complete and synced. The temporary file has the suffix `.partial`.
    ///
    /// # Errors
    /// - [`TrainError::Checkpoint`] if a state cannot be read or the file cannot be written.
    /// - [`TrainError::InconsistentStates`] after a partial [`Trainer::restore`].
    pub fn save(
        &self,
        path: impl AsRef<Path>,
        user: &BTreeMap<String, String>,
    ) -> Result<(), TrainError> {
        if self.has_mixed_states {
            return Err(TrainError::InconsistentStates);
        }
        let path = path.as_ref();
        let partial = partial(path);
        let done = self.write(&partial, user).and_then(|()| {
            std::fs::rename(&partial, path).map_err(io("rename"))?;
            sync_folder(path);
            Ok(())
        });
        if done.is_err() {
            // The write error is reported; an error of this clean-up is not.
            let _ = std::fs::remove_file(&partial);
        }
        done.map_err(at(path))
    }

    fn write(&self, path: &Path, user: &BTreeMap<String, String>) -> Result<(), CheckpointError> {
        let RngState { seed, counter } = self.random();
        let info = CheckpointInfo {
            format: FORMAT,
            steps: self.steps(),
            seed,
            counter,
            fingerprint: self.step_graph().fingerprint(),
            user: user.clone(),
        };
        let mut states = Vec::new();
        for state in self.step_graph().states() {
            states.push((state, type_of(state)?));
        }
        // States with wide elements come first, so that every tensor is aligned to its element
        // size.
        states.sort_by_key(|(_, ty)| std::cmp::Reverse(ty.dtype.size_bytes()));
        let header = header(&info, &states)?;
        let file = File::create(path).map_err(io("open"))?;
        let mut file = BufWriter::new(file);
        file.write_all(&header).map_err(io("write"))?;
        for (state, _) in &states {
            let tensor = self.executable().read_state(&state.name);
            let tensor = tensor.map_err(|source| CheckpointError::State {
                name: state.name.clone(),
                source,
            })?;
            file.write_all(tensor.bytes()).map_err(io("write"))?;
        }
        file.flush().map_err(io("write"))?;
        file.get_ref().sync_all().map_err(io("sync"))
    }

    /// Restores a checkpoint: every state, the step count, and the seed and counter of random
    /// numbers. A resumed run gives the same bits as an uninterrupted one. Returns the metadata
    /// with the data of the caller. Parameters and the learning rate schedule are not part of a
    /// checkpoint.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] if the file cannot be read, has the wrong length, or belongs to
    /// another model or optimizer; it names the first difference. States are then unchanged. If
    /// reading or the device fails midway, states are mixed, and steps return an error until a
    /// complete checkpoint is restored.
    pub fn restore(&mut self, path: impl AsRef<Path>) -> Result<CheckpointInfo, TrainError> {
        let path = path.as_ref();
        let mut opened = open(path).map_err(at(path))?;
        opened.check(self.step_graph()).map_err(at(path))?;
        self.version += 1;
        self.has_mixed_states = true;
        self.read(&mut opened).map_err(at(path))?;
        self.has_mixed_states = false;
        let info = opened.info;
        self.set_steps(info.steps);
        self.set_random(RngState {
            seed: info.seed,
            counter: info.counter,
        });
        Ok(info)
    }

    fn read(&mut self, opened: &mut CheckpointFile) -> Result<(), CheckpointError> {
        for (name, _) in &opened.tensors {
            let states = self.step_graph().states();
            let Some(state) = states.iter().find(|s| s.name == *name) else {
                continue;
            };
            let tensor = Tensor::zeros(type_of(state)?);
            let mut tensor = tensor.map_err(|source| CheckpointError::Tensor {
                name: name.clone(),
                source,
            })?;
            opened
                .file
                .read_exact(tensor.bytes_mut())
                .map_err(io("read"))?;
            let written = self.executable_mut().write_state(name, &tensor);
            written.map_err(|source| CheckpointError::State {
                name: name.clone(),
                source,
            })?;
            self.record_initial(name, &tensor);
        }
        Ok(())
    }
}
