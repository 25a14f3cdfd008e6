//! Generates quantize-dequantize (QDQ) sequences, as quantization tools write them.

use tercet_ir::attr::FloatAttr;
use tercet_ir::ops::*;
use tercet_ir::scalar::{BinaryFn, UnaryFn};
use tercet_ir::{DType, Tensor, TensorType, Value};

use super::Generator;

impl Generator<'_> {
    /// A value that is quantized to int8, moved, quantized and dequantized again.
    pub(super) fn through_codes(&mut self) -> Option<()> {
        let is_float = |v: &&Value| {
            let ty = self.graph.ty(**v);
            ty.dtype == DType::F32 && ty.rank() > 0
        };
        let x = *self.values.iter().rev().find(is_float)?;
        let own = (0.5, 3.0);
        let next = match self.values.len() % 3 {
            0 => own,
            _ => (0.75, 200.0),
        };
        let x = self.quantised(x, own)?;
        let x = self.dequantised(x, own)?;
        let perm: Vec<usize> = (0..self.graph.ty(x).rank()).rev().collect();
        let moved = self.graph.add(Transpose { perm }, &[x]).ok()?;
        let y = self.quantised(moved, next)?;
        let y = self.dequantised(y, next)?;
        self.values.push(y);
        Some(())
    }

    fn with_number(&mut self, f: BinaryFn, x: Value, value: f64) -> Option<Value> {
        let ty = TensorType::new(self.graph.ty(x).dtype, &[]);
        let tensor = Tensor::from_f64s(ty, &[value]).ok()?;
        let number = self.graph.constant(tensor).ok()?;
        self.graph.add(Binary { f }, &[x, number]).ok()
    }

    fn quantised(&mut self, x: Value, (scale, zero): (f64, f64)) -> Option<Value> {
        let scaled = self.with_number(BinaryFn::Div, x, scale)?;
        let f = UnaryFn::Round;
        let rounded = self.graph.add(Unary { f }, &[scaled]).ok()?;
        let moved = self.with_number(BinaryFn::Add, rounded, zero)?;
        let (lo, hi) = (FloatAttr(0.0), FloatAttr(255.0));
        let bounded = self.graph.add(Clamp { lo, hi }, &[moved]).ok()?;
        self.graph.cast(bounded, DType::U8).ok()
    }

    fn dequantised(&mut self, codes: Value, (scale, zero): (f64, f64)) -> Option<Value> {
        let wide = self.graph.cast(codes, DType::I32).ok()?;
        let less = self.with_number(BinaryFn::Sub, wide, zero)?;
        let float = self.graph.cast(less, DType::F32).ok()?;
        self.with_number(BinaryFn::Mul, float, scale)
    }
}
