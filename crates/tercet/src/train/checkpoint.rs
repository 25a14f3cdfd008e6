//! Checkpoints: every state of a training run in one safetensors file.
//!
//! The file's own metadata is one JSON text under the key `tercet.train`: the format's version, the number of steps, seed
//! and counter of random numbers, the fingerprint of the states, and what the caller adds. A file is written beside its
//! final name, synced, then renamed: whatever interrupts it, the one before stays whole. Tensors are written and read one
//! at a time.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use tercet_ir::random::Random;
use tercet_ir::{Bindings, DType, RunError, Tensor, TensorError, TensorType, Type};

use super::error::TrainError;
use super::state::StateInfo;
use super::step::TrainStep;
use super::trainer::Trainer;

/// The key of the file's metadata.
const KEY: &str = "tercet.train";
/// The version that is written and read.
const FORMAT: u32 = 1;
/// The longest header that is read, that of the format's own library.
const MOST_HEADER_BYTES: u64 = 100_000_000;

/// Why a checkpoint could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The system refused.
    #[error("cannot {doing}")]
    Io {
        /// `open`, `read`, `write`, `sync` or `rename`.
        doing: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is no safetensors file.
    #[error("it is no safetensors file: {reason}")]
    Format {
        /// What is wrong.
        reason: String,
    },
    /// It has fewer or more bytes than its header says.
    #[error("it has {found} bytes, its header says {expected}: it was {}", if .found < .expected { "cut short" } else { "added to" })]
    Length {
        /// The bytes by its header.
        expected: u64,
        /// The bytes that it has.
        found: u64,
    },
    /// It is a safetensors file of something else.
    #[error(
        "it is no checkpoint of a training run: its metadata has no `{KEY}`; set single weights with `Trainer::set_state`"
    )]
    NotACheckpoint,
    /// It was written by another version.
    #[error("its format is {found}; this version reads {FORMAT}")]
    Version {
        /// The format's number.
        found: u32,
    },
    /// It lacks a state.
    #[error(
        "it has no state `{name}`, which is {expected} here: it is of another model or optimizer"
    )]
    Missing {
        /// The first one, in the order of the step's states.
        name: String,
        /// Its type here.
        expected: String,
    },
    /// A state has another type.
    #[error("its state `{name}` is {found}, here it is {expected}: it is of another model")]
    Type {
        /// The first one, in the order of the step's states.
        name: String,
        /// Its type here.
        expected: String,
        /// Its type there.
        found: String,
    },
    /// It has a state more.
    #[error("it has a state `{name}` that is not here: it is of another model or optimizer")]
    Extra {
        /// The first one by name.
        name: String,
    },
    /// Its header was changed.
    #[error("its fingerprint is {found}, that of its states {expected}")]
    Fingerprint {
        /// Of the states that it has.
        expected: String,
        /// The one that it says.
        found: String,
    },
    /// A state could not be read from or written to the device.
    #[error("state `{name}`")]
    State {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: RunError,
    },
    /// There is no room for a tensor.
    #[error("state `{name}`")]
    Tensor {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: TensorError,
    },
}

fn io(doing: &'static str) -> impl Fn(std::io::Error) -> CheckpointError {
    move |source| CheckpointError::Io { doing, source }
}

/// What a checkpoint says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointInfo {
    /// The version of the format.
    format: u32,
    /// The number of steps done.
    pub steps: u64,
    /// The seed of random numbers, if one was set.
    pub seed: Option<u64>,
    /// The counter of random numbers of the next step.
    pub counter: u64,
    /// [`TrainStep::fingerprint`] of the step.
    pub fingerprint: String,
    /// What the caller added, such as the position in the data.
    pub user: BTreeMap<String, String>,
}

impl TrainStep {
    /// 16 hexadecimal digits of the names and types of all states, by which checkpoints are told apart.
    pub fn fingerprint(&self) -> String {
        let states = self.states().iter();
        fingerprint(
            states
                .map(|s| (s.name.as_str(), s.ty.to_string()))
                .collect(),
        )
    }
}

/// FNV-1a of names and types, in the order of the names.
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

/// The dtypes of states as the format names them.
const DTYPES: [(DType, Dtype); 10] = [
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F64, Dtype::F64),
    (DType::I32, Dtype::I32),
    (DType::U32, Dtype::U32),
    (DType::I64, Dtype::I64),
    (DType::I8, Dtype::I8),
    (DType::U8, Dtype::U8),
    (DType::Bool, Dtype::BOOL),
];

fn safe(dtype: DType) -> Option<Dtype> {
    let found = DTYPES.iter().find(|(own, _)| *own == dtype);
    found.map(|(_, safe)| *safe)
}

/// The type of a tensor of a file, in the words of a graph.
fn spelled(info: &TensorInfo) -> String {
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

/// Where a file is written before it gets its name.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    path.with_file_name(name)
}

/// Makes a rename last, where a folder can be synced.
fn sync_folder(path: &Path) {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // Some systems cannot open or sync a folder; the file itself is synced already.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
}

/// The header of a file of these states, with its length in front, padded so that tensors are aligned.
fn header(
    info: &CheckpointInfo,
    states: &[(&StateInfo, TensorType)],
) -> Result<Vec<u8>, CheckpointError> {
    let refused = |reason: String| CheckpointError::Format { reason };
    let text = serde_json::to_string(info).map_err(|e| refused(e.to_string()))?;
    let (mut at, mut tensors) = (0, Vec::with_capacity(states.len()));
    for (state, ty) in states {
        let dtype =
            safe(ty.dtype).ok_or_else(|| refused(format!("{} has no name in it", ty.dtype)))?;
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

/// A file whose header was read and found to fit its length.
struct Opened {
    file: BufReader<File>,
    info: CheckpointInfo,
    /// In the order in which they lie.
    tensors: Vec<(String, TensorInfo)>,
}

fn open(path: &Path) -> Result<Opened, CheckpointError> {
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
    if length > MOST_HEADER_BYTES {
        return Err(refused(format!(
            "a header of {length} bytes, at most {MOST_HEADER_BYTES} are possible"
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
    struct Version {
        format: u32,
    }
    let version: Version = serde_json::from_str(text).map_err(|e| refused(e.to_string()))?;
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
        .map(|(name, info)| (name.as_str(), spelled(info)));
    let own = fingerprint(own.collect());
    if own != info.fingerprint {
        let found = info.fingerprint;
        return Err(CheckpointError::Fingerprint {
            expected: own,
            found,
        });
    }
    Ok(Opened {
        file,
        info,
        tensors,
    })
}

impl Opened {
    /// Refuses states that are not those of a step.
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
            let found = spelled(info);
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

/// What a checkpoint says of itself: its steps, its place in the data. Reads the header only.
///
/// # Errors
/// [`TrainError::Checkpoint`] for a file that cannot be read, is cut short or added to, or is no checkpoint.
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
    /// Writes every state, the number of steps, seed and counter of random numbers, and what the caller adds (the
    /// position in the data) to a file. A file of that name is replaced when the new one is whole and synced; until then
    /// it stays, whatever happens. The new one is beside it meanwhile, with `.partial` behind its name.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] when a state cannot be read or the file cannot be written; [`TrainError::Torn`].
    pub fn save(
        &self,
        path: impl AsRef<Path>,
        user: &BTreeMap<String, String>,
    ) -> Result<(), TrainError> {
        if self.torn {
            return Err(TrainError::Torn);
        }
        let path = path.as_ref();
        let partial = partial(path);
        let done = self.write(&partial, user).and_then(|()| {
            std::fs::rename(&partial, path).map_err(io("rename"))?;
            sync_folder(path);
            Ok(())
        });
        if done.is_err() {
            // The error says more than that this failed as well.
            let _ = std::fs::remove_file(&partial);
        }
        done.map_err(at(path))
    }

    fn write(&self, path: &Path, user: &BTreeMap<String, String>) -> Result<(), CheckpointError> {
        let Random { seed, counter } = self.random();
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
        // Wide elements first, so that every tensor is aligned to its own.
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

    /// Reads a checkpoint: every state, the number of steps, seed and counter of random numbers. A run that goes on from
    /// it gives the same bits as one that was not interrupted. Returns what it says of itself, with what the caller had
    /// added; parameters and the schedule are not part of it.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] for a file that cannot be read, is cut short or added to, or is of another model or
    /// optimizer, with the first difference. States are then as before, unless reading or the device fails in the middle,
    /// after which steps are refused until a whole checkpoint is read.
    pub fn restore(&mut self, path: impl AsRef<Path>) -> Result<CheckpointInfo, TrainError> {
        let path = path.as_ref();
        let mut opened = open(path).map_err(at(path))?;
        opened.check(self.step_graph()).map_err(at(path))?;
        self.version += 1;
        self.torn = true;
        self.read(&mut opened).map_err(at(path))?;
        self.torn = false;
        let info = opened.info;
        self.set_steps(info.steps);
        self.set_random(Random {
            seed: info.seed,
            counter: info.counter,
        });
        Ok(info)
    }

    fn read(&mut self, opened: &mut Opened) -> Result<(), CheckpointError> {
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
            self.note(name, &tensor);
        }
        Ok(())
    }
}
