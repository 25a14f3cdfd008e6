//! Models in several GGUF files, `NAME-00001-of-0000N.gguf`, as `llama-gguf-split` writes them.
//!
//! Every part says its number from 0 (`split.no`), how many there are (`split.count`) and how many tensors all of them hold
//! (`split.tensors.count`). The first has the model's metadata; tensors are in any. Whichever part is opened, all are mapped
//! and become one [`Gguf`]; parts that are missing, that say other numbers than their names, or that contradict each other are
//! errors.

use std::path::{Path, PathBuf};

use super::error::{GgufError, clip};
use super::tensors::Tensors;
use super::{Gguf, MAX_ENTRIES, Metadata};
use crate::mmap::{FileError, MappedFile};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// The keys of a part that a whole file does not have.
pub(super) const KEYS: [&str; 3] = [NUMBER, COUNT, TENSORS];
/// More parts than this have no names of five digits.
const MAX_PARTS: u32 = 99_999;

/// Which part of how many a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// From 0, below `count`.
    number: u32,
    /// At least 2.
    count: u32,
}

impl Place {
    /// What the metadata says; none for a whole file.
    pub(super) fn read(metadata: &Metadata) -> Result<Option<Place>, GgufError> {
        let count = metadata.opt_u32(COUNT)?.unwrap_or(1);
        let number = metadata.opt_u32(NUMBER)?.unwrap_or(0);
        if count == 0 || count > MAX_PARTS || number >= count {
            return Err(GgufError::BadSplit { number, count });
        }
        Ok((count > 1).then_some(Place { number, count }))
    }

    /// What is refused where the other parts cannot be found.
    pub(super) fn alone(self) -> GgufError {
        GgufError::PartAlone {
            number: self.number + 1,
            count: self.count,
        }
    }

    fn suffix(self) -> String {
        format!("-{:05}-of-{:05}.gguf", self.number + 1, self.count)
    }
}

/// All parts of the model that `part`, a file at `path`, is one of.
pub(super) fn join(part: Gguf, place: Place, path: &Path) -> Result<Gguf, GgufError> {
    let suffix = place.suffix();
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(stem) = name.and_then(|name| name.strip_suffix(&suffix)) else {
        return Err(GgufError::PartName {
            path: path.to_path_buf(),
            number: place.number + 1,
            count: place.count,
            suffix,
        });
    };
    let mut opened = Some(part);
    let mut whole: Option<Joining> = None;
    for number in 0..place.count {
        let at = Place { number, ..place };
        let (part, path) = match opened.take_if(|_| number == place.number) {
            Some(part) => (part, path.to_path_buf()),
            None => {
                let path = path.with_file_name(format!("{stem}{}", at.suffix()));
                (open(&path, at)?, path)
            }
        };
        match &mut whole {
            None => whole = Some(Joining::new(part, path)?),
            Some(whole) => whole.add(part, path)?,
        }
    }
    // There are at least two parts.
    whole.ok_or_else(|| place.alone())?.finish()
}

/// One of the other parts.
fn open(path: &Path, at: Place) -> Result<Gguf, GgufError> {
    let (number, count) = (at.number + 1, at.count);
    let damaged = |source: GgufError| GgufError::Part {
        path: path.to_path_buf(),
        number,
        count,
        source: Box::new(source),
    };
    let file = match MappedFile::open(path) {
        Ok(file) => file,
        Err(FileError::NotFound { path }) => {
            return Err(GgufError::MissingPart {
                path,
                number,
                count,
            });
        }
        Err(other) => return Err(damaged(other.into())),
    };
    let part = Gguf::parse_part(file).map_err(damaged)?;
    match Place::read(&part.metadata).map_err(damaged)? {
        Some(found) if found == at => Ok(part),
        Some(found) => Err(mismatch(
            path,
            format!(
                "it says that it is part {} of {}",
                found.number + 1,
                found.count
            ),
        )),
        None => Err(mismatch(path, "it says that it is a whole file".to_owned())),
    }
}

fn mismatch(path: &Path, reason: String) -> GgufError {
    GgufError::PartMismatch {
        path: path.to_path_buf(),
        reason,
    }
}

/// The first part, and what others have added to it.
struct Joining {
    first: Gguf,
    /// How many tensors there must be in the end.
    expected: Option<u64>,
    paths: Vec<PathBuf>,
    tensors: Vec<Tensors>,
}

impl Joining {
    fn new(first: Gguf, path: PathBuf) -> Result<Joining, GgufError> {
        Ok(Joining {
            expected: first.metadata.opt_u64(TENSORS)?,
            tensors: vec![first.tensors.clone()],
            paths: vec![path],
            first,
        })
    }

    /// Takes another part whose metadata agrees with the first one's.
    fn add(&mut self, part: Gguf, path: PathBuf) -> Result<(), GgufError> {
        for (key, value) in part.metadata.iter().filter(|(key, _)| *key != NUMBER) {
            // Of each part's own data.
            if key == "general.alignment" {
                continue;
            }
            match self.first.metadata.get(key) {
                Some(same) if same == value => {}
                Some(_) => {
                    let key = clip(key);
                    return Err(mismatch(
                        &path,
                        format!("its `{key}` is another than that of the first part"),
                    ));
                }
                None => {
                    let key = clip(key);
                    return Err(mismatch(
                        &path,
                        format!("it has `{key}`, which the first part does not have"),
                    ));
                }
            }
        }
        self.first.parts.extend(part.parts);
        self.tensors.push(part.tensors);
        self.paths.push(path);
        Ok(())
    }

    fn finish(self) -> Result<Gguf, GgufError> {
        let Joining {
            mut first,
            expected,
            paths,
            tensors,
        } = self;
        let count: u64 = tensors.iter().map(|t| t.infos().len() as u64).sum();
        let expected = expected.unwrap_or(count);
        if count != expected || count > MAX_ENTRIES {
            return Err(mismatch(
                &paths[0],
                format!(
                    "its `{TENSORS}` is {expected}, but all parts together have {count} (at most {MAX_ENTRIES} are possible)"
                ),
            ));
        }
        first.tensors = Tensors::joined(tensors, &paths)?;
        Ok(first)
    }
}
