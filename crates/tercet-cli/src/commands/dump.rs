//! `tercet run --dump`: writes the value of every node to a file.

use std::path::Path;

use tercet::{Device, Graph, Tensor, Value, node_values, optimized_values};

use super::tensors::to_array;
use crate::error::CliError;
use crate::npy::write_npy;
use crate::{output, output_path};

/// Maximum number of characters of a result's name that go into a file name.
const MAX_NAME_CHARS: usize = 60;

/// Creates `dir` and writes each value to a separate file in it.
pub(crate) fn dump(
    dir: &Path,
    graph: &Graph,
    tensors: &[(String, Tensor)],
    device: &Device,
    optimized: bool,
) -> Result<(), CliError> {
    std::fs::create_dir_all(dir).map_err(|source| CliError::Write {
        path: dir.to_path_buf(),
        source,
    })?;
    let named: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let digits = graph.len().saturating_sub(1).to_string().len();
    let mut files = 0;
    let values = match optimized {
        true => optimized_values(graph, &named, device)?,
        false => node_values(graph, &named, device)?,
    };
    for value in values {
        let (value, tensor) = value?;
        let path = dir.join(file_name(graph, value, digits));
        output_path::write(&path, |mut file| write_npy(&mut file, &to_array(&tensor)))?;
        files += 1;
    }
    output::print_note(format_args!("{files} values written to {}", dir.display()));
    Ok(())
}

/// File name of a value: `07_mat_mul.npy`, `07.1_top_k.npy` for a second result, `08_softmax_y.npy`
/// for the graph output `y`.
pub fn file_name(graph: &Graph, value: Value, digits: usize) -> String {
    let op = graph.node(value.node).op.kind().doc().name;
    let mut name = format!("{:0digits$}", value.node.0);
    if value.port > 0 {
        name += &format!(".{}", value.port);
    }
    name += &format!("_{op}");
    if let Some(output) = graph.outputs().iter().find(|o| o.value == value) {
        let safe = output.name.chars().take(MAX_NAME_CHARS);
        let safe = safe.map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' | '_' => c,
            _ => '_',
        });
        name.push('_');
        name.extend(safe);
    }
    name + ".npy"
}
