//! Strings of ONNX models. Tensors hold their places in the list that the file has: what is given as lines of text becomes
//! places, results are shown as strings again.

use std::io::Write;
use std::path::Path;

use tercet::{Port, Tensor};
use tercet_onnx::{Columns, Imported, Strings};

use crate::error::CliError;
use crate::output;

/// How many strings a person is shown.
const SHOWN: usize = 16;

/// What numbers of outputs stand for.
#[derive(Default)]
pub(crate) struct Meaning {
    strings: Strings,
    string_outputs: Vec<String>,
    columns: Vec<Columns>,
}

impl Meaning {
    pub(crate) fn of(imported: &Imported) -> Meaning {
        Meaning {
            strings: imported.strings.clone(),
            string_outputs: imported.string_outputs.clone(),
            columns: imported.columns.clone(),
        }
    }

    /// The strings of an output, if it is one of strings; none in the place of one that the file does not have.
    pub(crate) fn strings(&self, output: &str, tensor: &Tensor) -> Option<Vec<Option<String>>> {
        let place = |place: i64| self.strings.at(place).map(str::to_string);
        let is_one = self.string_outputs.iter().any(|name| name == output);
        is_one.then(|| tensor.to_i64s().into_iter().map(place).collect())
    }

    /// The keys of an output's columns, if it stands for maps.
    pub(crate) fn columns(&self, output: &str) -> Option<&[String]> {
        let mut columns = self.columns.iter();
        columns
            .find(|c| c.output == output)
            .map(|c| c.keys.as_slice())
    }
}

/// The first strings, a line each.
pub(crate) fn print(out: &mut impl Write, strings: &[Option<String>]) -> std::io::Result<()> {
    for text in strings.iter().take(SHOWN) {
        let text = text.as_deref().map(output::shown);
        writeln!(out, "  {}", text.as_deref().unwrap_or("(unknown)"))?;
    }
    match strings.len().checked_sub(SHOWN) {
        None | Some(0) => Ok(()),
        Some(more) => writeln!(out, "  ... {more} more"),
    }
}

/// Takes inputs of the form `NAME=FILE.txt` out of the list: strings, a line each, for as many samples as there are lines by the
/// width of the input.
pub(crate) fn take(
    inputs: &mut Vec<String>,
    ports: &[Port],
    strings: &Strings,
) -> Result<Vec<(String, Tensor)>, CliError> {
    let mut given = Vec::new();
    let mut left = Vec::with_capacity(inputs.len());
    for input in inputs.drain(..) {
        match input.split_once('=') {
            Some((name, file)) if file.ends_with(".txt") => {
                given.push((
                    name.to_string(),
                    read(name, Path::new(file), ports, strings)?,
                ));
            }
            Some(_) | None => left.push(input),
        }
    }
    *inputs = left;
    Ok(given)
}

fn read(name: &str, file: &Path, ports: &[Port], strings: &Strings) -> Result<Tensor, CliError> {
    let text = std::fs::read_to_string(file).map_err(|source| CliError::File {
        path: file.to_path_buf(),
        source,
    })?;
    let lines: Vec<&str> = text.lines().collect();
    let port = ports.iter().find(|p| p.name == name);
    let port = port.ok_or_else(|| CliError::Usage(format!("the model has no input `{name}`")))?;
    let mut shape: Vec<usize> = port
        .ty
        .shape
        .iter()
        .map(|d| d.known().unwrap_or(0))
        .collect();
    let width: usize = shape.iter().skip(1).product::<usize>().max(1);
    if let Some(first) = shape.first_mut() {
        *first = lines.len() / width;
    }
    if shape.iter().product::<usize>() != lines.len() {
        return Err(CliError::Usage(format!(
            "{} has {} lines, `{name}` is {}",
            file.display(),
            lines.len(),
            port.ty
        )));
    }
    Tensor::from_slice(&shape, &strings.places(&lines)).map_err(|source| CliError::Tensor {
        what: format!("strings of `{name}`"),
        source,
    })
}
