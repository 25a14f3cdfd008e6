//! Printer of the text form.

use std::fmt;

use crate::attr::write_quoted;
use crate::graph::{Graph, Node};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {{")?;
        for (id, node) in self.nodes() {
            writeln!(f, "  {id} = {node}")?;
        }
        for a in self.assigns() {
            writeln!(f, "  assign {} = {}", a.state, a.value)?;
        }
        for (i, o) in self.outputs().iter().enumerate() {
            write!(
                f,
                "{}{} as ",
                if i == 0 { "  return " } else { ", " },
                o.value
            )?;
            write_quoted(f, &o.name)?;
        }
        if !self.outputs().is_empty() {
            writeln!(f)?;
        }
        write!(f, "}}")
    }
}

/// `op{attributes}(operands) : types`
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.kind().doc().name)?;
        for (i, (name, value)) in self.op.attrs().iter().enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { "{" } else { ", " })?;
        }
        if !self.op.attrs().is_empty() {
            f.write_str("}")?;
        }
        f.write_str("(")?;
        for (i, v) in self.inputs.iter().enumerate() {
            write!(f, "{}{v}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str(") : ")?;
        for (i, ty) in self.outputs.iter().enumerate() {
            write!(f, "{}{ty}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
