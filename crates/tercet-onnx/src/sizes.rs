//! Models whose shapes have no form with symbols: sizes are fixed, as few as need be.
//!
//! How many windows a strided convolution has is no polynomial of an image's size, and what a file has written into its
//! shapes may hold for one size alone. Such a model is imported for the sizes at hand.

use tercet_ir::{Bindings, Port, Symbol, Tensor, TensorType};

use crate::error::OnnxError;
use crate::import::{ImportOptions, ImportedModel};
use crate::model::OnnxModel;

/// Of more symbols than these all are fixed at once, instead of finding out which of them must be.
const MAX_TRIED: usize = 8;

impl OnnxModel {
    /// As [`OnnxModel::import_with`], and where shapes have no form, with symbols fixed at `sizes`: those of `fixed` at once,
    /// and if that is not enough as many as need be, which are added to it. A model is imported once for each symbol then.
    ///
    /// # Errors
    /// As [`OnnxModel::import_with`]; where sizes do not help, what is refused with all of them known.
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
        let e = match self.import_with(&with(fixed), &mut value) {
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

/// The sizes that tensors give to the symbols which are an axis of their inputs by themselves. Where two of them differ the
/// first counts; the run finds that they do.
pub fn sizes_of(ports: &[Port], inputs: &[(&str, &Tensor)]) -> Bindings {
    let types: Vec<(&str, &TensorType)> = inputs.iter().map(|(n, t)| (*n, t.ty())).collect();
    bindings_from_types(ports, &types)
}

/// As [`sizes_of`], of tensors of these types.
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
