//! Models of other tools compared with their own results.

mod attention;
mod ml;
mod torch_exports;
