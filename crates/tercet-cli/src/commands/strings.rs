//! Strings of ONNX models. Tensors contain positions in the model's string list: text inputs are
//! converted to positions, and results are shown as strings.

use std::io::Write;
use std::path::Path;

use tercet::{Port, Tensor};
use tercet_onnx::{ImportedModel, MapOutput, StringTable};

use crate::error::CliError;
use crate::output;

/// Maximum number of strings in text output.
const SHOWN: usize = 16;

/// Interpretation of output numbers: as strings or as map values.
#[derive(Default)]
pub(crate) struct OutputLabels {
    strings: StringTable,
    string_outputs: Vec<String>,
    columns: Vec<MapOutput>,
}

impl OutputLabels {
    pub(crate) fn new(imported: &ImportedModel) -> OutputLabels {
        OutputLabels {
            strings: imported.strings.clone(),
            string_outputs: imported.string_outputs.clone(),
            columns: imported.columns.clone(),
        }
    }

    /// Strings of an output, or `None` if it does not contain strings. An element is `None` if its
    /// position is not in the model's string list.
    pub(crate) fn strings(&self, output: &str, tensor: &Tensor) -> Option<Vec<Option<String>>> {
        let place = |place: i64| self.strings.at(place).map(str::to_string);
        let is_one = self.string_outputs.iter().any(|name| name == output);
        is_one.then(|| tensor.to_i64s().into_iter().map(place).collect())
    }

    /// Keys of an output's columns, if it represents ONNX maps.
    pub(crate) fn columns(&self, output: &str) -> Option<&[String]> {
        let mut columns = self.columns.iter();
        columns
            .find(|c| c.output == output)
            .map(|c| c.keys.as_slice())
    }
}

/// Prints at most [`SHOWN`] strings of a result, one per line, and the number of those left out.
pub(crate) fn print(out: &mut impl Write, strings: &[Option<String>]) -> std::io::Result<()> {
    for text in strings.iter().take(SHOWN) {
        let text = text.as_deref().map(output::escape_line);
        writeln!(out, "  {}", text.as_deref().unwrap_or("(unknown)"))?;
    }
    match strings.len().checked_sub(SHOWN) {
        None | Some(0) => Ok(()),
        Some(more) => writeln!(out, "  ... {more} more"),
    }
}

/// Removes inputs of the form `NAME=FILE.txt` from the list and reads them: one string per line.
/// The number of samples is the number of lines divided by the width of the input.
pub(crate) fn take_string_inputs(
    inputs: &mut Vec<String>,
    ports: &[Port],
    strings: &StringTable,
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

fn read(
    name: &str,
    file: &Path,
    ports: &[Port],
    strings: &StringTable,
) -> Result<Tensor, CliError> {
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
