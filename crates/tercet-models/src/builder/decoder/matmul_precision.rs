//! What rows are rounded to on their way into products with weights of 16 bits or packed ones.
//!
//! The graph is the same whatever is chosen, in F32: [`CompileOptions::products`] lets an executor round rows where
//! it multiplies them faster then, which is where there are many of them, as in prompts. Single tokens, residuals, norms,
//! softmax, sums and logits stay F32.

use std::fmt;

use tercet::ops::Op;
use tercet::{CompileOptions, DType, Device, Executable, Graph, Scheme};

use super::super::{Model, ModelError};

/// What rows of F32 become on their way into products with weights of 16 bits or packed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Products {
    /// They stay as they are.
    #[default]
    Exact,
    /// Rounded to the type that the device multiplies fastest with these weights, F16 or BF16, if there is one. Where a
    /// prompt leaves the range of F16, the model goes on in BF16 or F32 ([`Generator::note`](crate::Generator::note)).
    Auto,
    /// Rounded to this type, F16 or BF16, where the device gains by it; else as with [`Products::Auto`].
    In(DType),
}

impl Products {
    /// What rows of this graph are rounded to on the device.
    pub(crate) fn of(self, graph: &Graph, device: &Device) -> Option<DType> {
        self.choose(graph, [&device.products(), &device.packed_products()])
    }

    /// What rows of this graph are rounded to where these types are multiplied faster than F32, with weights that are floats and with
    /// packed ones.
    fn choose(self, graph: &Graph, [faster, packed]: [&[DType]; 2]) -> Option<DType> {
        let has = |dtype: DType| faster.contains(&dtype).then_some(dtype);
        let has_packed = |dtype: DType| packed.contains(&dtype).then_some(dtype);
        match self {
            Products::Exact => None,
            Products::In(dtype) => Some(dtype),
            Products::Auto => match Stored::of(graph) {
                Stored { all: 0, .. } => None,
                Stored { all, bf16, .. } if 2 * bf16 > all => has(DType::BF16),
                // Matrices of bf16 are left as they are.
                Stored { packed: 0, .. } => has(DType::F16).or(has(DType::BF16)),
                Stored { .. } => (has(DType::F16).or(has(DType::BF16)))
                    .or(has_packed(DType::F16))
                    .or(has_packed(DType::BF16)),
            },
        }
    }
}

/// Bytes of weights that products take as they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Stored {
    all: usize,
    bf16: usize,
    packed: usize,
}

impl Stored {
    fn of(graph: &Graph) -> Stored {
        let mut stored = Stored::default();
        for (_, node) in graph.nodes() {
            let Op::DequantMatMul(op) = &node.op else {
                continue;
            };
            let ty = graph.ty(node.inputs[1]);
            let sizes = ty.shape.iter().map(|dim| dim.known().unwrap_or(0));
            let bytes = sizes.fold(ty.dtype.size_bytes(), usize::saturating_mul);
            stored.all = stored.all.saturating_add(bytes);
            if op.scheme == Scheme::BF16 {
                stored.bf16 = stored.bf16.saturating_add(bytes);
            }
            if op.scheme.storage() == DType::U8 {
                stored.packed = stored.packed.saturating_add(bytes);
            }
        }
        stored
    }
}

/// A model whose products are rounded, and what it takes to compile it otherwise.
pub(crate) struct Rounded {
    /// What rows are rounded to.
    to: DType,
    device: Device,
    options: CompileOptions,
    model: Model,
}

impl Rounded {
    pub(crate) fn new(
        to: DType,
        device: &Device,
        options: CompileOptions,
        model: &Model,
    ) -> Rounded {
        let model = Model {
            graph: model.graph.clone(),
            // Tensors share their bytes.
            params: model.params.clone(),
        };
        Rounded {
            to,
            device: device.clone(),
            options,
            model,
        }
    }

    /// The same model in BF16 where that is faster than F32 and was not what it was in, else in F32.
    pub(crate) fn wider(self) -> Result<Wider, ModelError> {
        let faster = self.device.products();
        let next = Some(DType::BF16).filter(|bf16| self.to != *bf16 && faster.contains(bf16));
        let options = self.options.products_in(next);
        let exe = self.model.compile(&self.device, &options)?;
        let moved = Moved {
            from: self.to,
            to: next.unwrap_or(DType::F32),
        };
        let again = next.map(|to| Rounded {
            to,
            device: self.device,
            options,
            model: self.model,
        });
        Ok(Wider { exe, moved, again })
    }
}

/// A model that was compiled again.
pub(crate) struct Wider {
    pub(crate) exe: Box<dyn Executable>,
    /// What it was and is in.
    pub(crate) moved: Moved,
    /// What it takes to compile it otherwise once more.
    pub(crate) again: Option<Rounded>,
}

/// That a model left a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    from: DType,
    to: DType,
}

impl Moved {
    /// The products that models of the same file are to be compiled with.
    pub(crate) fn products(self) -> Products {
        match self.to {
            DType::F32 => Products::Exact,
            narrow => Products::In(narrow),
        }
    }
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Moved { from, to } = self;
        write!(
            f,
            "the prompt leaves the range of {from}, in which it was multiplied; the model goes on in {to}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tercet::Type;

    /// A graph with products of these weights, by their numbers of rows.
    fn graph(weights: &[(Scheme, usize)], dense: bool) -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [3, 256])).unwrap();
        for (i, &(scheme, rows)) in weights.iter().enumerate() {
            let stored = scheme.stored_len(256).unwrap();
            let ty = Type::new(scheme.storage(), [rows, stored]);
            let w = g.param(&format!("w{i}"), ty).unwrap();
            let y = g.dequant_matmul(x, w, scheme).unwrap();
            g.output(&format!("y{i}"), y).unwrap();
        }
        if dense {
            let w = g.param("w", Type::new(DType::F32, [256, 64])).unwrap();
            let y = g.matmul(x, w).unwrap();
            g.output("y", y).unwrap();
        }
        g
    }

    #[test]
    fn weights_and_device_decide() {
        let (f16, bf16) = (DType::F16, DType::BF16);
        let (both, half): (&[DType], &[DType]) = (&[f16, bf16], &[f16]);
        let packed = graph(&[(Scheme::Q4K, 64), (Scheme::Q6K, 16)], true);
        let halves = graph(&[(Scheme::F16, 64)], false);
        let brains = graph(&[(Scheme::BF16, 64), (Scheme::F16, 8)], false);
        let mixed = graph(&[(Scheme::BF16, 4), (Scheme::Q8_0, 64)], false);
        let dense = graph(&[], true);
        for (graph, faster, want) in [
            (&packed, both, Some(f16)),
            (&packed, half, Some(f16)),
            (&packed, &[bf16][..], Some(bf16)),
            (&packed, &[][..], None),
            (&halves, both, Some(f16)),
            (&brains, both, Some(bf16)),
            // What only F16 would round is the smaller part.
            (&brains, half, None),
            (&mixed, both, Some(f16)),
            (&dense, both, None),
        ] {
            assert_eq!(Products::Auto.choose(graph, [faster; 2]), want);
            assert_eq!(Products::Exact.choose(graph, [faster; 2]), None);
            assert_eq!(Products::In(bf16).choose(graph, [faster; 2]), Some(bf16));
        }
        // Processors gain by packed weights alone.
        let processor: [&[DType]; 2] = [&[], half];
        assert_eq!(Products::Auto.choose(&packed, processor), Some(f16));
        assert_eq!(Products::Auto.choose(&halves, processor), None);
        assert_eq!(Products::Auto.choose(&dense, processor), None);
    }

    #[test]
    fn processors_gain_by_f16_or_by_nothing() {
        // By the instructions that they have.
        assert_eq!(Device::cpu().products(), []);
        let cpu = Device::cpu().packed_products();
        assert!(cpu.is_empty() || cpu == [DType::F16], "{cpu:?}");
        assert_eq!(Device::reference().products(), []);
    }
}
