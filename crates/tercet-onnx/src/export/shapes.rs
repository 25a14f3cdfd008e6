//! Exports sizes: known sizes become constants, others are computed from the shapes of inputs.

use tercet_ir::{Dim, DimFactor};

use super::proto::OnnxAttrValue;
use super::writer::{ExportNodeError, OnnxWriter};

impl OnnxWriter {
    /// An I64 list of these sizes.
    pub(super) fn shape(&mut self, dims: &[Dim]) -> Result<String, ExportNodeError> {
        let known: Option<Vec<i64>> = dims.iter().map(known).collect();
        if let Some(sizes) = known {
            return Ok(self.list(&sizes));
        }
        let parts: Result<Vec<String>, ExportNodeError> =
            dims.iter().map(|d| self.size(d)).collect();
        let parts = parts?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts[..] {
            [one] => Ok(one.to_string()),
            _ => Ok(self.prepend("Concat", &parts, vec![("axis", OnnxAttrValue::Int(0))])),
        }
    }

    /// A size as a list of one element.
    pub(super) fn size(&mut self, dim: &Dim) -> Result<String, ExportNodeError> {
        if let Some(n) = known(dim) {
            return Ok(self.list(&[n]));
        }
        if let Some(name) = self.sizes.get(dim) {
            return Ok(name.clone());
        }
        let mut sum: Option<String> = None;
        for (factors, factor) in dim.sum() {
            let mut product: Option<String> = None;
            for factor in &factors {
                let size = self.factor(factor)?;
                product = Some(self.joined("Mul", product, size));
            }
            let term = match (product, factor) {
                (Some(product), 1) => product,
                (Some(product), factor) => {
                    let factor = self.list(&[factor]);
                    self.joined("Mul", Some(product), factor)
                }
                (None, factor) => self.list(&[factor]),
            };
            sum = Some(self.joined("Add", sum, term));
        }
        let name = sum.unwrap_or_else(|| self.list(&[0]));
        self.sizes.insert(dim.clone(), name.clone());
        Ok(name)
    }

    /// A symbol, or a quotient, as a list of one element. Numerators are not negative for sizes
    /// that fit the graph, so that ONNX's `Div`, which truncates, rounds down.
    fn factor(&mut self, factor: &DimFactor) -> Result<String, ExportNodeError> {
        let symbol = match factor {
            DimFactor::Symbol(symbol) => symbol,
            DimFactor::Quotient(quotient) => {
                let numerator = self.size(&quotient.numerator())?;
                let divisor = self.list(&[quotient.divisor()]);
                return Ok(self.joined("Div", Some(numerator), divisor));
            }
        };
        let (input, axis) = self.place_of(symbol)?;
        let axis = axis as i64;
        let ends = vec![
            ("start", OnnxAttrValue::Int(axis)),
            ("end", OnnxAttrValue::Int(axis + 1)),
        ];
        Ok(self.prepend("Shape", &[&input], ends))
    }

    fn joined(&mut self, op: &str, a: Option<String>, b: String) -> String {
        match a {
            Some(a) => self.prepend(op, &[&a, &b], Vec::new()),
            None => b,
        }
    }
}

fn known(dim: &Dim) -> Option<i64> {
    dim.known().and_then(|n| i64::try_from(n).ok())
}
