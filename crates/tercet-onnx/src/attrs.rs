//! The attributes of a node. Reading an attribute marks it. Unread attributes are an error, because
//! ignoring them could change the result.

use std::cell::RefCell;

use crate::error::NodeErrorKind;
use crate::proto::{AttributeProto, GraphProto, SparseTensorProto, TensorProto};

/// `AttributeProto.AttributeType` values; each selects the field with the value.
mod kind {
    pub(super) const FLOAT: i32 = 1;
    pub(super) const INT: i32 = 2;
    pub(super) const STRING: i32 = 3;
    pub(super) const TENSOR: i32 = 4;
    pub(super) const GRAPH: i32 = 5;
    pub(super) const FLOATS: i32 = 6;
    pub(super) const INTS: i32 = 7;
    pub(super) const STRINGS: i32 = 8;
    pub(super) const SPARSE_TENSOR: i32 = 11;
}

/// The attributes of a node. Inside a function body, references to the call's attributes are
/// already resolved.
#[derive(Debug)]
pub(crate) struct OnnxAttrs<'m> {
    list: Vec<(&'m str, &'m AttributeProto)>,
    read: RefCell<Vec<bool>>,
}

impl<'m> OnnxAttrs<'m> {
    pub(crate) fn new(list: Vec<(&'m str, &'m AttributeProto)>) -> OnnxAttrs<'m> {
        let read = RefCell::new(vec![false; list.len()]);
        OnnxAttrs { list, read }
    }

    /// All attributes; marks them as read.
    pub(crate) fn all(&self) -> Vec<(&'m str, &'m AttributeProto)> {
        self.read.borrow_mut().fill(true);
        self.list.clone()
    }

    fn get(&self, name: &str, kinds: &[i32]) -> Result<Option<&'m AttributeProto>, NodeErrorKind> {
        let Some(at) = self.list.iter().position(|(n, _)| *n == name) else {
            return Ok(None);
        };
        self.read.borrow_mut()[at] = true;
        let attr = self.list[at].1;
        match attr.r#type {
            // Early files do not set the attribute type.
            None | Some(0) => Ok(Some(attr)),
            Some(kind) if kinds.contains(&kind) => Ok(Some(attr)),
            Some(kind) => Err(NodeErrorKind::attribute(
                name,
                format!("has type {kind}, expected {kinds:?}"),
            )),
        }
    }

    /// True if the attribute exists; does not mark it as read.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.list.iter().any(|(n, _)| *n == name)
    }

    /// Marks attributes as read whose values cannot change the result.
    pub(crate) fn ignore(&self, names: &[&str]) {
        for (at, (name, _)) in self.list.iter().enumerate() {
            if names.contains(name) {
                self.read.borrow_mut()[at] = true;
            }
        }
    }

    pub(crate) fn int_opt(&self, name: &str) -> Result<Option<i64>, NodeErrorKind> {
        Ok(self.get(name, &[kind::INT])?.map(|a| a.i.unwrap_or(0)))
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> Result<i64, NodeErrorKind> {
        Ok(self.int_opt(name)?.unwrap_or(default))
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, NodeErrorKind> {
        Ok(self.int(name, default.into())? != 0)
    }

    pub(crate) fn float_opt(&self, name: &str) -> Result<Option<f64>, NodeErrorKind> {
        let attr = self.get(name, &[kind::FLOAT])?;
        Ok(attr.map(|a| f64::from(a.f.unwrap_or(0.0))))
    }

    pub(crate) fn float(&self, name: &str, default: f64) -> Result<f64, NodeErrorKind> {
        // Round through F32, as a value in a file would be.
        Ok(self.float_opt(name)?.unwrap_or(f64::from(default as f32)))
    }

    pub(crate) fn string_opt(&self, name: &str) -> Result<Option<String>, NodeErrorKind> {
        let attr = self.get(name, &[kind::STRING])?;
        let text =
            attr.map(|a| String::from_utf8_lossy(a.s.as_deref().unwrap_or(&[])).into_owned());
        Ok(text)
    }

    pub(crate) fn string(&self, name: &str, default: &str) -> Result<String, NodeErrorKind> {
        Ok(self
            .string_opt(name)?
            .unwrap_or_else(|| default.to_string()))
    }

    pub(crate) fn ints_opt(&self, name: &str) -> Result<Option<&'m [i64]>, NodeErrorKind> {
        Ok(self.get(name, &[kind::INTS])?.map(|a| a.ints.as_slice()))
    }

    pub(crate) fn floats_opt(&self, name: &str) -> Result<Option<&'m [f32]>, NodeErrorKind> {
        Ok(self
            .get(name, &[kind::FLOATS])?
            .map(|a| a.floats.as_slice()))
    }

    pub(crate) fn strings_opt(&self, name: &str) -> Result<Option<Vec<String>>, NodeErrorKind> {
        let attr = self.get(name, &[kind::STRINGS])?;
        let text = |s: &bytes::Bytes| String::from_utf8_lossy(s).into_owned();
        Ok(attr.map(|a| a.strings.iter().map(text).collect()))
    }

    pub(crate) fn tensor_opt(&self, name: &str) -> Result<Option<&'m TensorProto>, NodeErrorKind> {
        Ok(self.get(name, &[kind::TENSOR])?.and_then(|a| a.t.as_ref()))
    }

    pub(crate) fn sparse_opt(
        &self,
        name: &str,
    ) -> Result<Option<&'m SparseTensorProto>, NodeErrorKind> {
        let attr = self.get(name, &[kind::SPARSE_TENSOR])?;
        Ok(attr.and_then(|a| a.sparse_tensor.as_ref()))
    }

    pub(crate) fn graph(&self, name: &str) -> Result<&'m GraphProto, NodeErrorKind> {
        let attr = self.get(name, &[kind::GRAPH])?;
        let graph = attr.and_then(|a| a.g.as_ref());
        graph.ok_or_else(|| NodeErrorKind::attribute(name, "requires a graph"))
    }

    /// Returns an error for attributes that were not read.
    pub(crate) fn finish(&self) -> Result<(), NodeErrorKind> {
        let read = self.read.borrow();
        let left = self
            .list
            .iter()
            .zip(read.iter())
            .filter(|(_, read)| !**read);
        let left: Vec<String> = left.map(|((name, _), _)| format!("`{name}`")).collect();
        match left.is_empty() {
            true => Ok(()),
            false => Err(NodeErrorKind::Unread(left.join(", "))),
        }
    }
}
