//! Import of models whose shapes are not expressible with symbols. As few symbols as possible are
//! replaced by sizes.
//!
//! Constant shapes in a file may be valid for one size only. A model with such shapes is imported
//! for the current sizes. So is one whose shapes are quotients of a symbol without a bound, such as
//! the number of windows of a strided convolution: programs for known image sizes are faster.

use tercet_ir::{Bindings, DimFactor, Graph, Port, Symbol, Tensor, TensorType};

use crate::error::OnnxError;
use crate::import::{ImportOptions, ImportedModel};
use crate::model::OnnxModel;

/// With more symbols than this, all are fixed at once, without a search for the ones that must be
/// fixed.
const MAX_TRIED: usize = 8;

impl OnnxModel {
    /// As [`OnnxModel::import_with`], with symbols replaced by their `sizes` where shapes are not
    /// expressible, or are quotients of a symbol without a bound. Replaces the symbols in `fixed`
    /// first. If that is not enough, adds further symbols to `fixed`, with one import per symbol.
    ///
    /// # Errors
    /// As [`OnnxModel::import_with`]. If known sizes do not help, the error lists the failures with
    /// all sizes known.
    pub fn import_at(
        &self,
        options: &ImportOptions,
        sizes: &Bindings,
        fixed: &mut Vec<Symbol>,
        mut value: impl FnMut(&str) -> Option<Tensor>,
    ) -> Result<ImportedModel, OnnxError> {
        let with = |symbols: &[Symbol]| {
            let known = symbols.iter().filter_map(|s| Some((s, sizes.get(s)?)));
            known.fold(options.clone(), |o, (symbol, n)| o.fixed(symbol, n))
        };
        let mut first = self.import_with(&with(fixed), &mut value);
        if let Ok(imported) = &first {
            let mut divided = divided_symbols(&imported.graph);
            divided.retain(|s| options.bounds.get(s).is_none() && sizes.get(s).is_some());
            if !divided.is_empty() {
                fixed.extend(divided);
                first = self.import_with(&with(fixed), &mut value);
            }
        }
        let e = match first {
            Ok(imported) => return Ok(imported),
            Err(e) => e,
        };
        let mut symbols: Vec<Symbol> = sizes.iter().map(|(symbol, _)| symbol.clone()).collect();
        if !e.may_need_sizes() || symbols.iter().all(|s| fixed.contains(s)) {
            return Err(e);
        }
        let mut imported = self.import_with(&with(&symbols), &mut value)?;
        let tried = match symbols.len() <= MAX_TRIED {
            true => symbols.clone(),
            false => Vec::new(),
        };
        for symbol in tried {
            let fewer: Vec<Symbol> = symbols.iter().filter(|s| **s != symbol).cloned().collect();
            if let Ok(with_fewer) = self.import_with(&with(&fewer), &mut value) {
                (imported, symbols) = (with_fewer, fewer);
            }
        }
        *fixed = symbols;
        Ok(imported)
    }
}

/// The symbols that quotients in shapes divide.
fn divided_symbols(graph: &Graph) -> Vec<Symbol> {
    let mut divided = Vec::new();
    let types = graph.nodes().flat_map(|(_, node)| &node.outputs);
    for dim in types.flat_map(|ty| ty.shape.iter()) {
        if dim.known().is_some() || dim.as_symbol().is_some() {
            continue;
        }
        for factor in dim.sum().into_iter().flat_map(|(factors, _)| factors) {
            let DimFactor::Quotient(quotient) = factor else {
                continue;
            };
            quotient.numerator().for_each_symbol(|s| {
                if !divided.contains(s) {
                    divided.push(s.clone());
                }
            });
        }
    }
    divided
}

/// The sizes that tensors give to the symbols that are complete axes of their inputs. If two
/// tensors disagree, the first one counts, and the run reports the conflict.
pub fn sizes_of(ports: &[Port], inputs: &[(&str, &Tensor)]) -> Bindings {
    let types: Vec<(&str, &TensorType)> = inputs.iter().map(|(n, t)| (*n, t.ty())).collect();
    bindings_from_types(ports, &types)
}

/// As [`sizes_of`], for tensor types.
pub(crate) fn bindings_from_types(ports: &[Port], inputs: &[(&str, &TensorType)]) -> Bindings {
    let mut sizes = Bindings::new();
    for (name, ty) in inputs {
        let port = ports.iter().find(|p| p.name == *name);
        let dims = port.map_or(&[][..], |p| &p.ty.shape);
        for (dim, n) in dims.iter().zip(&ty.shape) {
            if let Some(symbol) = dim.as_symbol().filter(|s| sizes.get(s).is_none()) {
                sizes.set(symbol, *n);
            }
        }
    }
    sizes
}
