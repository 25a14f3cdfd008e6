//! Sizes as values of the model: known ones are constants, others are computed from the shapes of inputs.

use tercet_ir::Dim;

use super::proto::Attr;
use super::writer::{Refused, Writer};

impl Writer {
    /// A list of these sizes, I64.
    pub(super) fn shape(&mut self, dims: &[Dim]) -> Result<String, Refused> {
        let known: Option<Vec<i64>> = dims.iter().map(known).collect();
        if let Some(sizes) = known {
            return Ok(self.list(&sizes));
        }
        let parts: Result<Vec<String>, Refused> = dims.iter().map(|d| self.size(d)).collect();
        let parts = parts?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts[..] {
            [one] => Ok(one.to_string()),
            _ => Ok(self.add_before("Concat", &parts, vec![("axis", Attr::Int(0))])),
        }
    }

    /// A size as a list of one.
    pub(super) fn size(&mut self, dim: &Dim) -> Result<String, Refused> {
        if let Some(n) = known(dim) {
            return Ok(self.list(&[n]));
        }
        if let Some(name) = self.sizes.get(dim) {
            return Ok(name.clone());
        }
        let mut sum: Option<String> = None;
        for (symbols, factor) in dim.sum() {
            let mut product: Option<String> = None;
            for symbol in &symbols {
                let (input, axis) = self.place_of(symbol)?;
                let axis = axis as i64;
                let ends = vec![("start", Attr::Int(axis)), ("end", Attr::Int(axis + 1))];
                let size = self.add_before("Shape", &[&input], ends);
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

    fn joined(&mut self, op: &str, a: Option<String>, b: String) -> String {
        match a {
            Some(a) => self.add_before(op, &[&a, &b], Vec::new()),
            None => b,
        }
    }
}

fn known(dim: &Dim) -> Option<i64> {
    dim.known().and_then(|n| i64::try_from(n).ok())
}
